#!/usr/bin/env bash
# Repeats the tests that depend on the code that LLVM generates, for other processors: Numba compiles for the processor
# of this machine unless told otherwise.
#
#   ci/processors.sh
set -euo pipefail
# shellcheck source=ci/common.sh
. "$(dirname "$0")/common.sh"

# A processor that is missing here is not a failure, even in CI, because no machine has them all. ci/test.sh counts the
# skip.
skip() { echo "SKIPPED processors: $1" | tee -a "${JITLISTEN_SKIPS:-/dev/null}" >&2; }

if [ "$(uname -m)" != x86_64 ]; then
    skip 'their names are those of x86-64'
    exit 0
fi
export CARGO_TARGET_DIR=$PWD/target
PATH=$PWD/target/tools:$PATH
output=$(mktemp)
trap 'rm -f "$output"' EXIT
status=0

# Names, lines and stacks of compiled code: perf with a map and with images, py-spy, gdb, the unwinders in the process.
tests=(
    table::numba_0_68_1::perf table::numba_0_68_1::gdb_attached
    image_python_stacks::py_spy_records image_python_stacks::py_spy_dumps_the_chain
    image_perf::perf_attached_to_a_running_process image_perf::perf_annotate
    image::perf_walks_by_unwind_tables
    unwinders::with_images_libunwind unwinders::rules_are_read_from_code
)

# for_processor NAME [FLAG...]: runs the tests if this machine's processor has all the flags.
for_processor() {
    local name=$1 flag began=$SECONDS failed=
    shift
    for flag in "$@"; do
        grep -qw -- "$flag" /proc/cpuinfo || { skip "this one cannot run code for $name"; return; }
    done
    export NUMBA_CPU_NAME=$name NUMBA_CPU_FEATURES=
    cargo test -q --workspace --test together -- "${tests[@]}" >"$output" 2>&1 || { failed=yes; tail -n 60 "$output" >&2; }
    echo "processors: $name: ${failed:+FAILED, }$((SECONDS - began)) s"
    [ -z "$failed" ] || status=1
}

cargo build --quiet --release
for_processor generic
for_processor nehalem
for_processor skylake-avx512 avx512f avx512bw avx512cd avx512dq avx512vl
exit $status
