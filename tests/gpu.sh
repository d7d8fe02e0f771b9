#!/bin/sh
# Builds Hone with CUDA, then checks and measures the CUDA device of this machine, and trains, gates and
# swaps a model of 0.6 B on it under streaming load. The compiler comes from PyPI, unless CUDA_HOME
# names one or nvcc is there. Where cargo or the sources' crates are missing, the programs of an earlier
# build (target/gpu/hone and hone-bench) are used: they can be carried to a machine that reaches nothing.
set -eu
cd "$(dirname "$0")/.."
bench=target/gpu/hone-bench

compiler() {
    if [ -n "${CUDA_HOME:-}" ] || command -v nvcc >/dev/null 2>&1; then return; fi
    CUDA_HOME=$PWD/target/cuda/nvidia/cu13
    export CUDA_HOME
    if [ -x "$CUDA_HOME/bin/nvcc" ]; then return; fi
    echo "fetching nvcc from PyPI to target/cuda"
    mkdir -p target/cuda/wheels
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest target/cuda/wheels \
        nvidia-cuda-nvcc==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 \
        nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88
    for wheel in target/cuda/wheels/*.whl; do
        python3 -m zipfile -e "$wheel" target/cuda
    done
    chmod +x "$CUDA_HOME"/bin/* "$CUDA_HOME"/nvvm/bin/*
}

if [ -z "${GPU_PREBUILT:-}" ] && command -v cargo >/dev/null 2>&1; then
    compiler
    features=hone/cuda
    for feature in ${FEATURES-candle}; do features="$features hone/$feature"; done
    cargo build --release --locked -p hone -p hone-bench --features "$features"
    mkdir -p target/gpu
    cp target/release/hone target/release/hone-bench target/gpu/
elif [ ! -x $bench ]; then
    echo "There is no cargo here and no $bench; run make gpu on a machine with Rust and carry target/gpu/hone and hone-bench." >&2
    exit 1
fi

failed=0
log=target/gpu/device.log
mkdir -p target/gpu
$bench device --json >$log || failed=1
cat $log
if grep -q '"real":true' $log; then
    # The engine as it serves: publishing under load, and completions at once.
    export HONE__MODEL__DEVICE=cuda
    for name in swap decode; do
        $bench $name || failed=1
    done
    # A model of 0.6 B: the whole loop under streaming load, with training paused and running, and
    # versions published under load.
    python3 tests/gpu_model.py target/gpu/model
    export HONE__MODEL__PATH=target/gpu/model
    $bench gap --seconds 60 || failed=1
    $bench swap || failed=1
else
    echo "There is no CUDA device here; take $bench to a machine with one and run: GPU_PREBUILT=1 make gpu"
fi
exit $failed
