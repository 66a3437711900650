#!/bin/sh
# Snapshots, changes, compares and restores a real folder on the default repository, showing each command.
# Everything is made below a temporary folder; your own repository, key and cache are not touched.
set -eu

project=$(cd "$(dirname "$0")/.." && pwd)
place=$(mktemp -d "${TMPDIR:-/tmp}/ohdiff-demo.XXXXXX")
trap 'chmod -R u+w "$place" && rm -rf "$place"' EXIT
trap 'exit 130' INT TERM

XDG_DATA_HOME=$place/data XDG_CONFIG_HOME=$place/config XDG_CACHE_HOME=$place/cache
export XDG_DATA_HOME XDG_CONFIG_HOME XDG_CACHE_HOME
unset OHDIFF_REPOSITORY OHDIFF_PASSWORD OHDIFF_PASSWORD_FILE OHDIFF_PASSWORD_COMMAND OHDIFF_PASSWORD_FD \
    OHDIFF_KEY_FILE OHDIFF_CACHE_DIR OHDIFF_HOST

step() {
    printf '\n== %s\n' "$1"
}

show() {
    printf '$ %s\n' "$*"
    "$@"
}

step 'A folder with real files: this project, with an empty folder and a link added'
folder=$place/work
show mkdir "$folder"
for part in ohdiff kernels repo_format; do
    show cp -R "$project/$part" "$folder/$part"
done
show mkdir "$folder/empty"
show ln -s ohdiff/errors.py "$folder/link"
show cp -R "$folder" "$place/before"

step 'A first snapshot: makes the repository and its key'
show ohdiff snapshot "$folder"

step 'Changes: one file edited, one moved, one removed, one added, the empty folder gone'
printf '\n# changed\n' >>"$folder/ohdiff/errors.py"
show mv "$folder/ohdiff/clock.py" "$folder/moved.py"
show rm "$folder/ohdiff/__main__.py"
show cp /bin/sh "$folder/program"
show rmdir "$folder/empty"

step 'What has changed on disk since the snapshot'
show ohdiff diff latest "$folder" --content

step 'A second snapshot: only what is new is read and stored'
show ohdiff snapshot "$folder"
show ohdiff snapshots
show ohdiff diff latest~1 latest

step 'Looking into a snapshot'
show ohdiff ls --long "latest:$folder"
show ohdiff find '*.cpp' --snapshot latest --quiet

step 'Restoring both states, and comparing them file by file'
show ohdiff restore "latest~1:$folder" --target "$place/restored"
show diff -r "$place/before" "$place/restored"
show test -d "$place/restored/empty"
show test "$(readlink "$place/restored/link")" = ohdiff/errors.py
show ohdiff restore "latest:$folder" --target "$place/restored" --delete
show diff -r "$folder" "$place/restored"

step 'Checking every byte in the repository'
show ohdiff check --read-data
show ohdiff stats

step 'Done: both restored states are equal to what was snapshotted'
