#!/bin/sh
# Runs a command with its ledger in a private PostgreSQL server, whose files stay in target/postgres: for
# `make run STORE=postgres`. The server ends with the command.
set -eu

programs=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)
if [ ! -x "$programs/initdb" ]; then
    echo "PostgreSQL 15 or newer is needed: apt-get install postgresql (or make setup)" >&2
    exit 1
fi
folder=$(pwd)/target/postgres
mkdir -p "$folder"
as=""
if [ "$(id -u)" = 0 ]; then
    # PostgreSQL refuses to be root.
    user=postgres
    id $user >/dev/null 2>&1 || user=nobody
    chown $user "$folder"
    as="setpriv --reuid=$user --regid=$(id -g $user) --clear-groups"
fi
if [ ! -f "$folder/data/PG_VERSION" ]; then
    $as "$programs/initdb" --pgdata "$folder/data" --username hone --auth trust --encoding UTF8 >"$folder/log" 2>&1 ||
        { cat "$folder/log" >&2; exit 1; }
fi
# A session of its own: an interrupt at the terminal is for the command, which still needs the server to end.
# shellcheck disable=SC2086
setsid $as "$programs/postgres" -D "$folder/data" -k "$folder" -c listen_addresses= >"$folder/log" 2>&1 &
server=$!
trap 'kill -INT $server 2>/dev/null; wait $server || true' EXIT
trap : INT TERM
until "$programs/pg_isready" --quiet --host "$folder"; do
    kill -0 $server 2>/dev/null || { cat "$folder/log" >&2; exit 1; }
    sleep 0.1
done
HONE__STORE__URL="postgres://hone@$(echo "$folder" | sed 's#/#%2F#g')/postgres"
export HONE__STORE__URL
echo "the ledger is in PostgreSQL: $programs/psql -h $folder -U hone postgres, schema hone"
echo "for a server of yours set store.url (docs/operations.md)"
"$@"
