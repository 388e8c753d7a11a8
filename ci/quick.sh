#!/usr/bin/env bash
# Quick tests for contributors: checks, unit tests, and one tool of each kind with the newest wheel and an unoptimised
# library, which builds twice as fast. `make test` runs everything.
set -uo pipefail
# shellcheck source=ci/common.sh
. "$(dirname "$0")/common.sh"

export CARGO_TARGET_DIR=$PWD/target JITLISTEN_LIBRARY=$PWD/target/debug/libjitlisten.so
PATH=$PWD/target/tools:$PATH
began=$SECONDS
failures=()

step() {
    local name=$1 from=$SECONDS
    shift
    printf '\n=== %s\n' "$name"
    if "$@"; then
        printf '=== %s: ok, %d s\n' "$name" $((SECONDS - from))
    else
        failures+=("$name")
        printf '=== %s: FAILED, %d s\n' "$name" $((SECONDS - from))
    fi
}

# One integration with one tool of each kind. All steps name the same packages, because cargo would otherwise rebuild
# them.
tools=(table::numba_0_68_1 image_perf::perf_attached jitdump_perf::frame_pointers_lead_out image_python_stacks::py_spy_dumps_the_chain
    unwinders::with_images_libunwind host_safety_fork::multiprocessing)

step setup ci/setup.sh quick
step build cargo build --quiet
step check ci/check.sh
step exports ci/exports.sh target/debug
step 'unit tests' cargo test -q --workspace --lib --bins --test model_hostile --test model_objects
step tools cargo test -q --workspace --test together -- --test-threads=4 "${tools[@]}"

if [ ${#failures[@]} -gt 0 ]; then
    printf '\nfailed:\n'
    printf '    %s\n' "${failures[@]}"
fi
printf '\nquick: %d failed, %d s\n' ${#failures[@]} $((SECONDS - began))
[ ${#failures[@]} = 0 ]
