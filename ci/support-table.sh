#!/usr/bin/env bash
# The door x consumer table of the README, from what one run of the test suite has seen.
#
#   ci/integrations.sh LINES          compares README.md with the lines `door<TAB>consumer` in the file LINES
#   ci/integrations.sh --write LINES  writes the table into README.md
set -euo pipefail
cd "$(dirname "$0")/.."

write=
if [ "${1:-}" = --write ]; then write=1; shift; fi
lines=${1:?the file with the lines of a test run}
table=$(mktemp)
trap 'rm -f "$table"' EXIT

# Names and order are those of tests/src/doors.rs. What no test has seen is an empty cell, which the text below the table
# has to explain.
names() { sed -n "/^pub const $1:/{:more;/;\$/!{N;b more};s/.*= //;p}" tests/src/doors.rs | grep -o '"[^"]*"' | tr -d '"'; }
mapfile -t doors < <(names DOORS)
mapfile -t consumers < <(names CONSUMERS)
{
    printf '| door |'; printf ' %s |' "${consumers[@]}"; printf '\n| --- |'
    printf ' --- |%.0s' "${consumers[@]}"; printf '\n'
    for door in "${doors[@]}"; do
        printf '| %s |' "$door"
        for consumer in "${consumers[@]}"; do
            if grep -qxF "$door"$'\t'"$consumer" "$lines"; then printf ' yes |'; else printf '  |'; fi
        done
        printf '\n'
    done
} >"$table"

begin='<!-- support: begin -->'
end='<!-- support: end -->'
if [ -n "$write" ]; then
    sed -i -e "/^$begin\$/,/^$end\$/{/^$begin\$/{p;r $table
};/^$end\$/p;d}" README.md
elif ! diff -u --label README.md --label 'this run' <(sed "1,/^$begin\$/d; /^$end\$/,\$d" README.md) "$table"; then
    echo "doors: README.md (-) and this run (+) disagree; ci/integrations.sh --write makes them agree" >&2
    exit 1
fi
