#!/bin/sh
# Builds the engine for 64-bit ARM with its NEON kernels and runs its tests under emulation (QEMU, user
# mode), which says nothing of speed. Installs what that needs and leaves alone what is already there.
# Arguments go to the tests: `sh tests/arm.sh cpu` runs those with cpu in their name.
set -eu
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-gnu

if [ "$(uname -m)" = aarch64 ]; then exec cargo test --locked -p hone-kernels -p hone-checkpoint -p hone-text -p hone-nn -p hone-cuda --lib -- "$@"; fi

need=""
command -v qemu-aarch64 >/dev/null 2>&1 || need="$need qemu-user"
command -v aarch64-linux-gnu-gcc >/dev/null 2>&1 || need="$need gcc-aarch64-linux-gnu"
command -v aarch64-linux-gnu-g++ >/dev/null 2>&1 || need="$need g++-aarch64-linux-gnu"
[ -e /usr/aarch64-linux-gnu/include/stdio.h ] || need="$need libc6-dev-arm64-cross"
if [ -n "$need" ]; then
    echo "installing$need"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $need
fi
[ -d "$(rustc --print sysroot)/lib/rustlib/$target" ] || rustup target add $target

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc CXX_aarch64_unknown_linux_gnu=aarch64-linux-gnu-g++
# Tests of the CUDA kernels compile them, with $CXX, for the processor that they run on.
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="env CXX=aarch64-linux-gnu-g++ qemu-aarch64 -L /usr/aarch64-linux-gnu"
cargo test --locked -p hone-kernels -p hone-checkpoint -p hone-text -p hone-nn -p hone-cuda --lib --target $target -- "$@"
