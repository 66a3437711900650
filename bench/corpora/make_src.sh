#!/bin/sh
# Corpus src: two Linux kernel source trees about 22 stable releases apart, 78,656 files and 1.3 GB each.
# usage: make_src.sh FOLDER       (makes FOLDER/src/v1 and FOLDER/src/v2; keeps downloads in FOLDER/.downloads)
# Needs apt-get and dpkg-deb, and Debian 12 sources with security updates; V1 and V2 may name other versions.
set -eu

base=$(mkdir -p "$1" && cd "$1" && pwd)
v1=${V1:-6.1.170-3}
v2=${V2:-6.1.192-3}

mkdir -p "$base/.downloads"
cd "$base/.downloads"
apt-get download "linux-source-6.1=$v1" "linux-source-6.1=$v2"

# unpack NAME VERSION
unpack() {
  rm -rf "$base/src/$1" unpacked
  mkdir -p "$base/src/$1"
  dpkg-deb -x "linux-source-6.1_$2_all.deb" unpacked
  tar -xf unpacked/usr/src/linux-source-6.1.tar.xz -C "$base/src/$1" --strip-components=1
  rm -rf unpacked
}

unpack v1 "$v1"
unpack v2 "$v2"
