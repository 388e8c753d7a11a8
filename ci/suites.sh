#!/usr/bin/env bash
# Runs third-party test suites with and without the library, and checks that the failures are the same. Takes about an
# hour. The results are in records/suites.tsv.
#
#   [LIBRARY=target/release/libjitlisten.so] ci/suites.sh [llvmlite|cpython|numba|lines|sampled|python...]    default: all
set -euo pipefail
# shellcheck source=ci/common.sh
. "$(dirname "$0")/common.sh"

ci/setup.sh suites
library=${LIBRARY:-}
if [ -z "$library" ]; then
    CARGO_TARGET_DIR=$PWD/target cargo build --release --quiet
    library=target/release/libjitlisten.so
fi
library=$(realpath "$library")
results=$PWD/target/suites
rm -rf "$results"
status=0

# Parts of Numba's suite that load, free, cache or debug compiled code, fork, or raise exceptions through compiled
# frames. test_parfors and test_cuda are excluded, because each takes hours.
numba=(caching compile_cache exceptions try_except nrt nrt_refct refop_pruning generators debug debuginfo gdb_bindings gdb_dwarf
    codegen profiler num_threads threadsafety parfors_caching parallel_backend)

# Tests that each compile one kind of code, to compare runs with and without line tables. The parfors tests take hours,
# so only three of their classes are included.
lines=(closure recursion generators looplifting object_mode inlining ir_inlining overlap cfunc unpack_sequence array_exprs exceptions
    jitclasses extending dispatcher caching withlifting mixed_tuple_unroller comprehension listobject dictobject stencils debuginfo
    parfors_passes parfors.TestParforBasic parfors.TestPrangeBasic parfors.TestParforsLeaks)
llvmlite=(binding ir refprune valuerepr)
# Tests of CPython and greenlet about frames, threads, signals and child processes.
python=(asyncio generators gc threading sys_setprofile monitoring subprocess signal)
greenlet=(contextvars cpp extension_interface gc generator generator_nested greenlet greenlet_trash interpreter_shutdown leaks
    stack_saved throw tracing weakref)
ufuncs=(ufunc gufunc vectorize_decor ufuncbuilding)

compare() {
    local venv=$1 suite=$2
    shift 2
    if [ ! -x "target/venv/$venv/bin/python" ]; then
        echo "SKIPPED $suite in $venv: no virtual environment" >&2
        return
    fi
    printf '\n%s, %s\n\n' "$suite" "$venv"
    local seen=objects
    [[ $suite != sampled* ]] || seen=samples
    echo "| module | tests | skipped | bad, stock | bad, with the library | differ | unsteady | $seen | stock | with the library |"
    echo '| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |'
    "target/venv/$venv/bin/python" tests/suites/compare.py "$library" "$results/$suite-$venv" "$suite" "$@" || status=1
}

[ $# -gt 0 ] || set -- llvmlite cpython numba lines sampled python
for suite in "$@"; do
    case $suite in
    llvmlite)
        for venv in numba-0.68.1 numba-0.60.0 numba-0.57.1 numba-0.56.4 numba-0.68.1-python-3.1{2,3}; do
            compare "$venv" llvmlite
        done
        ;;
    cpython) for venv in numba-0.68.1-python-3.1{2,3}; do compare "$venv" cpython; done ;;
    numba) compare suites numba "${numba[@]/#/numba.tests.test_}" ;;
    # Record 1,000 samples per second of CPU time, and for llvmlite's suite also of wall-clock time.
    sampled)
        compare numba-0.68.1 sampled "${llvmlite[@]/#/llvmlite.tests.test_}"
        compare numba-0.68.1 sampled-wall "${llvmlite[@]/#/llvmlite.tests.test_}"
        # Exclude the gdb test, because gdb stops at the sampler's signal.
        mapfile -t numba < <(printf '%s\n' "${numba[@]}" | grep -vx gdb_dwarf)
        compare suites sampled "${numba[@]/#/numba.tests.test_}"
        ;;
    python)
        for venv in numba-0.68.1-python-3.1{2,3}; do compare "$venv" sampled-wall "${python[@]/#/test.test_}"; done
        compare pools sampled-wall "${greenlet[@]/#/greenlet.tests.test_}"
        ;;
    lines) compare suites lines "${lines[@]/#/numba.tests.test_}" "${ufuncs[@]/#/numba.tests.npyufunc.test_}" ;;
    *)
        say "no such suite: $suite"
        exit 2
        ;;
    esac
done
exit $status
