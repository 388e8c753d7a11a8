#!/usr/bin/env bash
# Tests the library in userlands of other Debian releases: the same tests as on this system, with the tools of that
# release.
#
#   [LIBRARY=target/release/libjitlisten.so] ci/systems.sh NAME...        trixie, sid, bullseye
#
# If a userland's C library is too old for this library, the library from the wheel is tested, unless LIBRARY names
# another.
# Prints a table for each release and writes it to target/systems/NAME.md. A userland that cannot be created is a
# failure in CI and is skipped with a message elsewhere.
set -euo pipefail
# shellcheck source=ci/common.sh
. "$(dirname "$0")/common.sh"

library=$(realpath "${LIBRARY:-target/release/libjitlisten.so}")
export CARGO_TARGET_DIR=$PWD/target
host=$(rustc -vV | sed -n 's/^host: //p')
failures=0 threads=2

inside() { nice -n "${NICE:-0}" ci/in-userland.sh "$name" "$@"; }

# --- test programs --------------------------------------------------------------------------------------------------------

# Builds the test programs: one for tests that run concurrently and one for tests that run alone. Sets `program` and
# `alone` to their paths.
build_program() {
    if ! cargo test --no-run --test together --test alone "$@" >"$work/cargo" 2>&1; then
        cat "$work/cargo" >&2
        return 1
    fi
    program=$(sed -n 's|^ *Executable tests/together/main\.rs (\(.*\))$|\1|p' "$work/cargo")
    alone=$(sed -n 's|^ *Executable tests/alone/main\.rs (\(.*\))$|\1|p' "$work/cargo")
}

# A program linked here needs this system's C library or a newer one, so for other systems it is linked statically.
choose_program() {
    build_program --workspace
    if ! inside "$program" --list >/dev/null 2>&1; then
        RUSTFLAGS='-C target-feature=+crt-static' build_program -p jitlisten-tests --target "$host"
    fi
}

# --- the library ----------------------------------------------------------------------------------------------------------

loads() { inside python3 -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' "$under_test" >"$results/loads" 2>&1; }

# Copy the shared and the static library, because LIBRARY's path may not exist in the userland.
take_library() {
    under_test=$results/libjitlisten.so
    cp "$1" "$under_test"
    if [ -f "${1%.so}.a" ]; then cp "${1%.so}.a" "$results/"; fi
}

# A library linked here needs this system's C library or a newer one. The wheel's library is linked against an old one.
choose_library() {
    take_library "$library"
    loads && return
    if [ -z "${LIBRARY:-}" ]; then
        say "$name cannot load $library: taking that of the wheel"
        ci/setup.sh wheel >&2 && ci/wheel.sh library >&2 || return
        take_library "target/wheel/cargo/$(uname -m)-unknown-linux-gnu/wheel/libjitlisten.so"
        loads && return
    fi
    cat "$results/loads" >&2
    return 1
}

# --- scenarios ------------------------------------------------------------------------------------------------------------

row() {
    printf '| %s | %s | %s | %d s |\n' "$1" "$2" "$3" "$4" | tee -a "$table"
    [ "$2" = ok ] || { failures=$((failures + 1)); tail -n 40 "$log" >&2; }
}

# Prints `5 tests` from libtest's output, or the names of the failed tests.
outcome() {
    local failed
    failed=$(awk '/^test .* FAILED$/ { print $2 }' "$log" | sort -u | tr '\n' ' ')
    if [ -n "$failed" ]; then echo "$failed"; else
        awk '/^test result:/ { n += $4 } END { print n + 0 " tests" }' "$log"
    fi
}

# scenario TITLE [VARIABLE=VALUE...] TEST...: runs every test whose name contains one of these words.
scenario() {
    local title=$1 began=$SECONDS variables=() result=FAILED
    shift
    while [[ $1 == *=* ]]; do variables+=("$1"); shift; done
    log=$results/$((count += 1)).log
    variables=(JITLISTEN_USERLAND="$name" JITLISTEN_VENVS=/opt/venv JITLISTEN_LIBRARY="$under_test" JITLISTEN_TEST_LLVM="$llvm"
        JITLISTEN_SKIPS="$results/skips" "${variables[@]}")
    if inside env "${variables[@]}" "$program" --test-threads="$threads" --include-ignored "$@" >"$log" 2>&1; then result=ok; fi
    # Fail if no test matches, because such a run proves nothing.
    if grep -q '^running 0 tests' "$log"; then result=FAILED; fi
    row "$title" "$result" "$(outcome)" $((SECONDS - began))
}

# python_functions TITLE [VARIABLE=VALUE...]: records Python programs, one at a time.
python_functions() {
    local program=$alone threads=1
    scenario "$@" sampler_python::
}

# command_succeeds TITLE COMMAND...: runs a command that must succeed.
command_succeeds() {
    local title=$1 began=$SECONDS result=FAILED
    shift
    log=$results/$((count += 1)).log
    if inside "$@" >"$log" 2>&1; then result=ok; fi
    row "$title" "$result" "$(tail -n 1 "$log" | cut -c 1-100 | tr '|' ' ')" $((SECONDS - began))
}

numba=numba_0_68_1

every_scenario() {
    scenario 'program prints what it prints without us' table::$numba::output
    scenario 'perf, frame pointers, perf map' table::$numba::perf
    scenario 'perf without us names nothing' table::stock::perf_finds_no_name
    scenario 'perf, frame pointers, images' image::perf_report_names_code
    scenario 'perf attached, images' image_perf::perf_attached_to_a_running_process
    scenario 'perf, --call-graph dwarf, images' image::perf_walks_by_unwind_tables
    scenario 'perf inject, jitdump, frame pointers' jitdump_perf::frame_pointers_lead_out
    # perf 5.10 writes section offsets that are off by 64 bytes. perf 7.2 reports the module 0x80 bytes before the code.
    [ "$name" != trixie ] || scenario 'perf inject, jitdump, --call-graph dwarf' jitdump_perf::unwind_tables_lead_out
    scenario 'gdb, attached and started' table::$numba::gdb
    scenario 'gdb, unwind tables alone' environment::unwind_tables_alone_serve_gdb
    scenario 'py-spy, images' image_python_stacks::py_spy_dumps_the_chain
    # With Python 3.14 and newer, py-spy 0.4.3 puts Python's own frames in the wrong place.
    [ "$name" = sid ] || scenario 'py-spy, images, over Python' \
        image_python_stacks::py_spy_records image_python_stacks::py_spy_dumps_names image_python_stacks::stock_stacks
    scenario 'libgcc and libunwind inside' unwinders::
    # Not tested on bullseye, because the test needs a library linked against that release's C library.
    [ "$name" = bullseye ] || scenario 'lists of modules' modules::every_way modules::a_child_has modules::switched_on_late
    [ "$name" != sid ] || scenario 'the report of a crash in Python' modules::the_report_of_a_crash
    scenario 'fork' host_safety_fork::
    scenario 'threads' threads::four_threads threads::prange
    scenario 'cached code' cache::
    scenario 'opened late' opened_by_c::
    python_functions 'Python functions: stacks, lines, shares'
    scenario 'variables' \
        environment::all_includes environment::an_unknown_sink environment::off_is_off
    command_succeeds 'C tour, installed and uninstalled' env CI= PREFIX=/tmp/prefix ci/tour.sh "${under_test%/*}"
}

# Line tables, the code with and without them, and coverage: CI has no Python of these versions.
lines_and_coverage() {
    local version tests=(python/tests/test_lines.py python/tests/test_lines_causes.py python/tests/test_lines_messages.py
        python/tests/test_lines_same_code.py python/tests/test_coverage_equal.py python/tests/test_coverage_random.py)
    [ "$name" = sid ] || return 0
    for version in 3.14:venv 3.15:venv-3.15; do
        command_succeeds "Python ${version%:*}: line tables and coverage" env PYTHONDONTWRITEBYTECODE=1 \
            "/opt/${version#*:}/numba-0.68.1/bin/python" -m pytest -q -n 2 --dist loadfile -p no:cacheprovider "${tests[@]}"
    done
}

# Python 3.15 is built with frame pointers.
of_python_3_15() {
    [ "$name" = sid ] || return 0
    scenario 'Python 3.15: output' JITLISTEN_VENVS=/opt/venv-3.15 table::$numba::output
    scenario 'Python 3.15: perf, frame pointers, to main' JITLISTEN_VENVS=/opt/venv-3.15 python_frame_pointers::whole_chains
    scenario 'Python 3.15: the report of a crash' JITLISTEN_VENVS=/opt/venv-3.15 modules::the_report_of_a_crash
    python_functions 'Python 3.15: Python functions: stacks, lines, shares' JITLISTEN_VENVS=/opt/venv-3.15
    scenario 'Python 3.15: perf, gdb' JITLISTEN_VENVS=/opt/venv-3.15 table::$numba::perf table::$numba::gdb
}

installed() {
    # shellcheck disable=SC2016 # the inner shell expands these variables
    command_succeeds 'installed library' sh -euc '
        PREFIX=/tmp/prefix BUILT=$1 capi/install.sh install
        JITLISTEN_VENVS=/opt/venv JITLISTEN_LIBRARY=/tmp/prefix/lib/libjitlisten.so "$2" "$3"
        PREFIX=/tmp/prefix capi/install.sh uninstall
    ' sh "${under_test%/*}" "$program" $numba::
}

# --------------------------------------------------------------------------------------------------------------------------

system() {
    name=$1 count=0
    local status=0 directory
    directory=$(ci/userland.sh "$name") || status=$?
    if [ $status = 3 ] && [ -z "${CI:-}" ]; then
        echo "SKIPPED $name: no userland can be made here, see above" | tee -a "${JITLISTEN_SKIPS:-/dev/null}" >&2
        return
    elif [ $status != 0 ]; then
        say "no userland $name"
        failures=$((failures + 1))
        return
    fi
    results=target/systems/$name table=target/systems/$name.md
    rm -rf "$results" "$table"
    mkdir -p "$results"
    results=$(realpath "$results")
    if ! choose_library; then
        say "no library for $name"
        failures=$((failures + 1))
        return
    fi
    llvm=$(cd "$directory" && find usr/lib -name 'libLLVM*.so.*' | head -n 1)
    llvm=/$llvm
    choose_program
    # shellcheck disable=SC2016 # the inner shell expands these variables
    printf '%s: %s\n' "$name" "$(inside sh -c 'getconf GNU_LIBC_VERSION; gdb --version | head -n 1; perf --version
        /opt/venv/numba-0.68.1/bin/python -c "import sys, numba; print(sys.version.split()[0], \"Numba\", numba.__version__)"' |
        tr '\n' ';')" | tee -a "$table"
    printf '\n| scenario | | | |\n| --- | --- | --- | --- |\n' | tee -a "$table"
    every_scenario
    of_python_3_15
    lines_and_coverage
    installed
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ $# -gt 0 ] || { echo 'usage: ci/systems.sh NAME...' >&2; exit 2; }
for name in "$@"; do system "$name"; done
[ "$failures" = 0 ]
