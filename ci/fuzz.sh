#!/usr/bin/env bash
# Compiles every fuzz target. With cargo-fuzz and a nightly toolchain, also runs each for some seconds from its seeds.
# fuzz/README.md lists long runs.
#
#   ci/fuzz.sh [seconds for each target, default 6]
set -euo pipefail
# shellcheck source=ci/common.sh
. "$(dirname "$0")/common.sh"

seconds=${1:-6}
targets=(loaded_object name lines unwind image calls sampled_stack python_frames report)

if ! cargo +nightly fuzz --version >/dev/null 2>&1; then
    cargo build --quiet --manifest-path fuzz/Cargo.toml --target-dir target/fuzz
    echo "SKIPPED the short fuzzing runs: no nightly toolchain with cargo-fuzz; the targets compile" >&2
    exit 0
fi

fuzz/seed.sh
nightly=target/fuzz-nightly
build() { cargo +nightly fuzz build --target-dir "$@" 2>&1 | grep -E '^(warning|error)' || true; }
build $nightly
# This target reads neighbouring memory, as the sampler does in a real process, so AddressSanitizer must be off.
build $nightly-plain --sanitizer none python_frames
found=$(mktemp -d)
trap 'rm -rf "$found"' EXIT
for target in "${targets[@]}"; do
    directory=$nightly
    [ "$target" != python_frames ] || directory=$nightly-plain
    program=$directory/x86_64-unknown-linux-gnu/release/$target
    # Store new inputs separately, because this short run must not change the corpus of long runs.
    if ! "$program" -max_len=16384 -max_total_time="$seconds" -seed=1 -timeout=60 \
        -artifact_prefix="fuzz/$target-" "$found" "fuzz/corpus/$target" >"$found.log" 2>&1; then
        tail -n 40 "$found.log"
        fail "$target failed; the input is fuzz/$target-*"
    fi
    printf 'fuzz: %s: %s\n' "$target" "$(tail -n 1 "$found.log")"
    rm -f "$found.log" "$found"/*
done
