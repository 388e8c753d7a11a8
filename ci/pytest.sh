#!/usr/bin/env bash
# ci/pytest.sh COMMAND...: runs pytest. If at most five tests fail, they run again, one by one. One that passes then is
# unsteady: it is listed at the end of ci/test.sh, and its failure is in the log.
set -uo pipefail

cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
status=0
"$@" -o cache_dir="$cache" || status=$?
# pytest exits with 1 if tests failed, and with other codes for other errors.
[ $status = 1 ] || exit $status
mapfile -t failed < <(python3 -c 'import json, sys; print(*json.load(open(sys.argv[1])), sep="\n")' "$cache/v/cache/lastfailed")
[ ${#failed[@]} -le 5 ] || exit $status
serial=()
[[ " $* " != *" -n "* ]] || serial=(-n 0)
"$@" -o cache_dir="$cache" --last-failed "${serial[@]}" || exit
printf 'UNSTEADY %s\n' "${failed[@]}" | tee -a "${JITLISTEN_UNSTEADY:-/dev/null}"
