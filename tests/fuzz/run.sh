#!/bin/sh
# Fuzzes every parser of outside bytes, one after the other, SECONDS_EACH (60) seconds each. Needs a
# nightly toolchain and cargo-fuzz (cargo install cargo-fuzz --locked). Inputs that a parser fails on
# are kept in target/fuzz/artifacts; found inputs go to target/fuzz/corpus, not into the repository.
set -eu
cd "$(dirname "$0")/../.."
seconds=${SECONDS_EACH:-60}
parsers=${*:-chat_body sse jwt template gguf safetensors tool_calls}
cargo +nightly fuzz build --fuzz-dir tests/fuzz --target-dir target/fuzz --sanitizer none parsers
program=$(find target/fuzz -path '*release/parsers' -type f | head -1)
for parser in $parsers; do
    mkdir -p "target/fuzz/corpus/$parser" "target/fuzz/artifacts/$parser"
    echo "== $parser, $seconds s"
    PARSER=$parser "$program" "target/fuzz/corpus/$parser" "tests/fuzz/corpus/$parser" \
        -artifact_prefix="target/fuzz/artifacts/$parser/" -max_total_time="$seconds" -timeout=10 \
        -rss_limit_mb=4096 -max_len=65536 -print_final_stats=1 -verbosity=0
done
