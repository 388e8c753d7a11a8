#!/usr/bin/env bash
# The tests whose outcome depends on the code that LLVM makes, once more for each of some other processors: Numba compiles for
# this one unless asked otherwise, so a machine sees only its own code.
#
#   ci/processors.sh
set -euo pipefail
cd "$(dirname "$0")/.."

# No machine has every processor, so in CI it is no failure; ci/test.sh counts it.
skip() { echo "SKIPPED processors: $1" | tee -a "${JITLISTEN_SKIPS:-/dev/null}" >&2; }

if [ "$(uname -m)" != x86_64 ]; then
    skip 'their names are those of x86-64'
    exit 0
fi
export CARGO_TARGET_DIR=$PWD/target
PATH=$PWD/target/tools:$PATH
said=$(mktemp)
trap 'rm -f "$said"' EXIT
status=0

# Names, lines and walks out of the code: perf with a map and with images, py-spy, gdb, the unwinders inside.
tests=(
    'table numba_0_68_1::perf numba_0_68_1::gdb_attached'
    'image_python_stacks py_spy_records py_spy_dumps_the_chain'
    'image_perf perf_attached_to_a_running_process perf_annotate'
    'image perf_walks_by_unwind_tables'
    'unwinders with_images_libunwind rules_are_read_from_code'
)

# A test that failed is run once more, alone.
run_tests() {
    local file=$1 again
    shift
    cargo test -q -p jitlisten-tests --test "$file" -- "$@" >"$said" 2>&1 && return
    mapfile -t again < <(sed -n 's/^    \([a-z0-9_:]*\)$/\1/p' "$said" | sort -u)
    [ ${#again[@]} -gt 0 ] && [ ${#again[@]} -le 2 ] || return 1
    echo "processors: once more, alone: ${again[*]}" >&2
    cargo test -q -p jitlisten-tests --test "$file" -- --exact "${again[@]}" >"$said" 2>&1
}

# for_processor NAME [FLAG...]: where this processor has all the flags.
for_processor() {
    local name=$1 flag words began=$SECONDS failed=
    shift
    for flag in "$@"; do
        grep -qw -- "$flag" /proc/cpuinfo || { skip "this one cannot run code for $name"; return; }
    done
    export NUMBA_CPU_NAME=$name NUMBA_CPU_FEATURES=
    for words in "${tests[@]}"; do
        # shellcheck disable=SC2086 # several words
        run_tests $words || { failed=yes; tail -n 60 "$said" >&2; }
    done
    echo "processors: $name: ${failed:+FAILED, }$((SECONDS - began)) s"
    [ -z "$failed" ] || status=1
}

cargo build --quiet --release
for_processor generic
for_processor nehalem
for_processor skylake-avx512 avx512f avx512bw avx512cd avx512dq avx512vl
exit $status
