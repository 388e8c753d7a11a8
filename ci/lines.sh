#!/usr/bin/env bash
# Tests of `python/jitlisten/_lines`: line tables that do not change the code.
#
#   ci/lines.sh          newest Numba, short list of programs, real tools; also messages of two old releases
#                        (ci/setup.sh)
#   ci/lines.sh environment   creates the environment for these tests
#   ci/lines.sh older    another Numba, and the patch for Numba with Numba's own tests
#   ci/lines.sh truth    three Numbas: programs that time their own phases, recorded by us and by perf; writes
#                        records/truth.tsv; an hour
#   ci/lines.sh all      every Numba with line tables, all programs; hours. Fails if a release cannot be installed here
#   ci/lines.sh same-code [NAME...]   machine code only, for these Numbas or all; writes the rows of
#                        records/same-code.tsv that the current line-table builder has not measured; can be
#                        interrupted and continued
#
# Requires the native library (make build). Environments are created under target/venv-lines.
set -euo pipefail
# shellcheck source=ci/common.sh
. "$(dirname "$0")/common.sh"

venvs=target/venv-lines
part=${1:-short}

. ci/venvs.sh

[ "$part" = environment ] || cargo build --release
make_newest() { make_venv 0.68.1 3.11 "${newest[@]}" pytest==8.4.2 pytest-xdist==3.8.0 py-spy==0.4.3 pystack==1.7.2; }
case $part in
environment)
    make_newest
    ;;
short)
    make_newest
    test_with 0.68.1 -n 2 --dist loadfile python/tests/test_lines*.py
    ;;
older)
    make_newest
    make_venv 0.57.1 3.11 numba==0.57.1 numpy==1.24.4 pytest==8.4.2
    test_with 0.57.1 python/tests/test_lines.py python/tests/test_lines_compilations.py python/tests/test_lines_same_code.py
    integrations/numba/test.sh "$venvs/0.68.1/bin/python"
    ;;
truth)
    make_venv 0.68.1-truth 3.11 "${newest[@]}" scipy
    make_venv 0.60.0-truth 3.11 numba==0.60.0 numpy==2.0.2 scipy
    make_venv 0.57.1-truth 3.11 numba==0.57.1 numpy==1.24.4 scipy
    head -n 1 records/truth.tsv >target/truth.tsv
    failed=0
    for name in 0.68.1-truth 0.60.0-truth 0.57.1-truth; do
        PATH="$PWD/$venvs/$name/bin:$PATH" "$venvs/$name/bin/python" benches/truth/run.py --write target/truth.tsv || failed=1
    done
    mv target/truth.tsv records/truth.tsv
    exit "$failed"
    ;;
all | same-code)
    export JITLISTEN_LINES_PROGRAMS=all
    tests=(python/tests/test_lines.py python/tests/test_lines_same_code.py)
    if [ "$part" = same-code ]; then
        tests=(python/tests/test_lines_same_code.py)
        JITLISTEN_LINES_BUILDER=$(git rev-parse HEAD:python/jitlisten/_lines HEAD:python/jitlisten/_numba | git hash-object --stdin | cut -c 1-7)
        export JITLISTEN_LINES_BUILDER
    fi
    compared=0 skipped=() failed=()
    while read -r name version requirements; do
        [ $# -lt 2 ] || [[ " ${*:2} " = *" $name "* ]] || continue
        row="^${name%-python-*} \\([0-9]+\\), $version\\t.*\\t${JITLISTEN_LINES_BUILDER:-}\$"
        [ "$part" = all ] || ! grep -qP "$row" records/same-code.tsv || continue
        # shellcheck disable=SC2086 # $requirements holds several arguments
        make_venv "$name" "$version" $requirements pytest || { skipped+=("$name"); continue; }
        test_with "$name" "${tests[@]}" && compared=$((compared + 1)) || failed+=("$name")
    done <<'MATRIX'
0.56.0 3.10 numba==0.56.0 numpy==1.22.4 setuptools==65.5.0
0.56.2 3.10 numba==0.56.2 numpy==1.23.5 setuptools==59.8.0
0.56.3 3.10 numba==0.56.3 numpy==1.23.5 setuptools==65.5.0
0.56.4 3.10 numba==0.56.4 numpy==1.23.5 setuptools==65.5.0
0.57.0 3.11 numba==0.57.0 numpy==1.24.4
0.57.1 3.11 numba==0.57.1 numpy==1.24.4
0.58.0 3.11 numba==0.58.0 numpy==1.25.2
0.58.1 3.11 numba==0.58.1 numpy==1.26.4
0.58.1-python-3.8 3.8 numba==0.58.1
0.59.0 3.11 numba==0.59.0 numpy==1.26.4
0.59.1 3.11 numba==0.59.1 numpy==1.26.4
0.60.0 3.11 numba==0.60.0 numpy==2.0.2
0.60.0-python-3.9 3.9 numba==0.60.0
0.61.0 3.11 numba==0.61.0
0.61.2 3.11 numba==0.61.2
0.62.0 3.11 numba==0.62.0
0.62.1 3.11 numba==0.62.1
0.63.0 3.11 numba==0.63.0
0.63.1 3.11 numba==0.63.1
0.64.0 3.11 numba==0.64.0
0.65.0 3.11 numba==0.65.0
0.65.1 3.11 numba==0.65.1
0.66.0 3.11 numba==0.66.0
0.67.0 3.11 numba==0.67.0
0.68.0 3.11 numba==0.68.0
0.68.1 3.11 numba==0.68.1 llvmlite==0.50.0 numpy==2.4.6
0.68.1-python-3.12 3.12 numba==0.68.1
0.68.1-python-3.13 3.13 numba==0.68.1
MATRIX
    echo "lines: $compared compared, ${#failed[@]} failed: ${failed[*]}; ${#skipped[@]} skipped: ${skipped[*]}"
    # A skipped program was not compared, although versions.py lists it as compared.
    [ ${#failed[@]} = 0 ] && [ ${#skipped[@]} = 0 ]
    ;;
*)
    echo "lines: no such part: $part" >&2
    exit 2
    ;;
esac
