#!/bin/sh
# npm.sh FOLDER ARGUMENTS...: runs npm in a folder; tries again after a registry that answered badly, and shows
# what went wrong.
set -eu
cd "$1"
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for wait in 5 20 0; do
    if npm "$@" --no-audit --no-fund --fetch-retries=5 --loglevel=error >"$log" 2>&1; then
        exit 0
    fi
    cat "$log" >&2
    df -h . >&2
    [ $wait = 0 ] || { echo "npm $1 failed in $(pwd); once more in $wait s" >&2; sleep $wait; }
done
echo "npm $1 failed three times in $(pwd)." >&2
exit 1
