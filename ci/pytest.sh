#!/usr/bin/env bash
# ci/pytest.sh COMMAND...: runs pytest. If at most five tests fail, they run again, one by one. One that passes then is
# unsteady: it is listed at the end of ci/test.sh, and its failure is in the log. A crash or a timeout is never run
# again.
set -uo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0
"$@" -o cache_dir="$work/cache" 2>&1 | tee "$work/output" || status=$?
# pytest exits with 1 if tests failed, and with other codes for other errors.
[ $status = 1 ] || exit $status
failed=()
[ ! -s "$work/cache/v/cache/lastfailed" ] ||
    mapfile -t failed < <(python3 -c 'import json, sys; print(*json.load(open(sys.argv[1])), sep="\n")' "$work/cache/v/cache/lastfailed")
[ ${#failed[@]} -gt 0 ] && [ ${#failed[@]} -le 5 ] || exit $status
! grep -qE "$(cat ci/never-again.txt)" "$work/output" || exit $status
# pytest-xdist adds the group to a test's name, so that only another run with it knows the test.
serial=()
[[ " $* " != *" -n "* ]] || serial=(-n 1)
"$@" -o cache_dir="$work/cache" --last-failed "${serial[@]}" 2>&1 | tee "$work/output" || exit
grep -qE "(^| )${#failed[@]} passed" "$work/output" || exit $status
printf 'UNSTEADY %s\n' "${failed[@]}" | tee -a "${JITLISTEN_UNSTEADY:-/dev/null}"
