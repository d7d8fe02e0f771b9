#!/bin/sh
# Installs what the tests need and leaves alone what is already there.
set -eu
cd "$(dirname "$0")/.."

need=""
{ command -v cc && command -v c++; } >/dev/null 2>&1 || need="$need build-essential"
command -v python3 >/dev/null 2>&1 || need="$need python3"
python3 -c 'import venv, ensurepip' >/dev/null 2>&1 || need="$need python3-venv"
command -v node >/dev/null 2>&1 || need="$need nodejs"
command -v npm >/dev/null 2>&1 || need="$need npm"
command -v curl >/dev/null 2>&1 || need="$need curl"
command -v chromium >/dev/null 2>&1 || need="$need chromium"
{ [ -x /usr/sbin/nginx ] && [ -f /etc/nginx/nginx.conf ]; } || need="$need nginx"
command -v bwrap >/dev/null 2>&1 || need="$need bubblewrap"
command -v ip >/dev/null 2>&1 || need="$need iproute2"
ls /usr/lib/*/faketime/libfaketimeMT.so.1 >/dev/null 2>&1 || need="$need libfaketime"
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || need="$need postgresql"
if [ -n "$need" ]; then
    echo "installing$need"
    apt-get update -qq
    # The tests start what they need themselves: no package may start a service.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' > $policy
        chmod +x $policy
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $need
fi

venv=target/venv
stamp=$venv/.requirements
if ! cmp -s tests/clients/requirements.txt "$stamp"; then
    mkdir -p target
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r tests/clients/requirements.txt
    cp tests/clients/requirements.txt "$stamp"
fi
for folder in tests/clients tests/browser; do
    if [ ! -e $folder/node_modules/.ready ] || [ $folder/package-lock.json -nt $folder/node_modules/.ready ]; then
        sh tests/npm.sh $folder ci
        touch $folder/node_modules/.ready
    fi
done
