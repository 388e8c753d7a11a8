#!/usr/bin/env bash
# Tests of `python/jitlisten/_coverage`: coverage of compiled code. Does not need the native library.
#
#   ci/coverage.sh          newest Numba with newest coverage.py
#   ci/coverage.sh older    an old Numba with an old coverage.py
#   ci/coverage.sh all      every Numba with line tables (the list of ci/lines.sh without 0.56): lines, branches and the
#                           cache; an hour. Fails if a release cannot be installed here
#   ci/coverage.sh random   2,000 random functions on each of Python 3.9 to 3.13, into records/coverage-random.tsv; hours
#   ci/coverage.sh suites   parts of third-party test suites, into records/coverage.tsv; hours
#
# Environments are created under target/venv-coverage.
set -euo pipefail
# shellcheck source=ci/common.sh
. "$(dirname "$0")/common.sh"

venvs=target/venv-coverage
# Python 3.8 supports only older pytest releases.
tools='pytest<9 pytest-cov pytest-xdist'

. ci/venvs.sh

case ${1:-short} in
short)
    # shellcheck disable=SC2086 # $tools holds several arguments
    make_venv 0.68.1 3.13 "${newest[@]}" coverage==7.17.3 $tools
    test_with 0.68.1 -n 2 --dist loadfile python/tests/test_coverage*.py
    ;;
older)
    # shellcheck disable=SC2086
    make_venv 0.57.1 3.11 numba==0.57.1 numpy==1.24.4 coverage==6.5.0 $tools
    test_with 0.57.1 -n 2 --dist loadfile python/tests/test_coverage*.py
    ;;
all)
    failed=() skipped=()
    while read -r name version requirements; do
        # shellcheck disable=SC2086
        make_venv "$name" "$version" $requirements coverage $tools || { skipped+=("$name"); continue; }
        test_with "$name" -k 'test_equal and branch or cached' python/tests/test_coverage*.py </dev/null || failed+=("$name")
    done < <(sed -n "/<<'MATRIX'/,/^MATRIX/p" ci/lines.sh | grep -E '^0\.[0-9]+\.[0-9]' | grep -v '^0\.56')
    echo "coverage: ${#failed[@]} failed: ${failed[*]}; ${#skipped[@]} skipped: ${skipped[*]}"
    [ ${#failed[@]} = 0 ] && [ ${#skipped[@]} = 0 ]
    ;;
random)
    while read -r name version requirements; do
        # shellcheck disable=SC2086
        make_venv "random-$name" "$version" $requirements $tools
        echo "coverage: random-$name"
        "$venvs/random-$name/bin/python" benches/coverage_random.py 2000 "$(date +%s)"
    done <<'PYTHONS'
3.9 3.9 numba==0.60.0 coverage==7.10.7
3.10 3.10 numba==0.65.1 coverage==7.10.7
3.11 3.11 numba==0.68.1 coverage==7.17.3
3.12 3.12 numba==0.68.1 coverage==7.17.3
3.13 3.13 numba==0.68.1 coverage==7.17.3
PYTHONS
    ;;
suites)
    # shellcheck disable=SC2086
    make_venv suites 3.12 numba==0.68.1 llvmlite==0.50.0 numpy==2.5.5 scipy==1.18.1 scikit-learn==1.9.1 coverage==7.17.3 \
        quantecon==0.13.1 numba-stats==1.14.0 sparse==0.19.3 numba-celltree==0.4.2 vector==1.9.0 clifford==1.5.1 \
        pyts==0.14.1 mapclassify==2.11.0 matplotlib pytest-cases $tools
    # These wheels do not include the project's tests.
    for source in numba-stats==1.14.0 numba-celltree==0.4.2 vector==1.9.0; do
        name=${source%==*}
        archive=$venvs/${name//-/_}-${source#*==}.tar.gz
        [ -e "$archive" ] || "$venvs/suites/bin/python" -m pip download -q --disable-pip-version-check --no-deps \
            --no-binary "$name" -d "$venvs" "$source"
        tar xzf "$archive" -C "$venvs" --wildcards '*/tests/*'
    done
    "$venvs/suites/bin/python" benches/coverage_suites.py "$venvs"
    ci/support.py
    ;;
*)
    echo "coverage: no such part: $1" >&2
    exit 2
    ;;
esac
