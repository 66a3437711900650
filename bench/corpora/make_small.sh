#!/bin/sh
# Corpus small: package trees of very many tiny files, 118,956 files and 133 MB; version 2 holds later releases.
# usage: make_small.sh FOLDER     (makes FOLDER/small/v1 and FOLDER/small/v2)
# Needs npm.
set -eu

base=$(mkdir -p "$1" && cd "$1" && pwd)

# install NAME PACKAGE...
install() {
  folder=$base/small/$1
  shift
  rm -rf "$folder"
  mkdir -p "$folder"
  cd "$folder"
  echo '{"name":"s","version":"1.0.0","private":true}' > package.json
  npm install --silent --no-audit --no-fund --ignore-scripts --legacy-peer-deps "$@"
}

install v1 @mui/icons-material@9.0.0 @tabler/icons@3.40.0 date-fns@4.1.0 lucide-static@1.18.0 \
  @fluentui/svg-icons@1.1.329 @material-symbols/svg-400@0.47.1 @phosphor-icons/core@2.1.0
install v2 @mui/icons-material@9.5.0 @tabler/icons@3.52.0 date-fns@4.4.0 lucide-static@1.62.0 \
  @fluentui/svg-icons@1.1.343 @material-symbols/svg-400@0.48.2 @phosphor-icons/core@2.1.1
