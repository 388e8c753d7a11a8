#!/usr/bin/env bash
# The integration x consumer table of docs/tools.md, from what one run of the test suite has seen.
#
#   ci/support-table.sh LINES          compares docs/tools.md with the lines `integration<TAB>consumer` in the file LINES
#   ci/support-table.sh --write LINES  writes the table into docs/tools.md
set -euo pipefail
cd "$(dirname "$0")/.."

write=
if [ "${1:-}" = --write ]; then write=1; shift; fi
lines=${1:?the file with the lines of a test run}
table=$(mktemp)
trap 'rm -f "$table"' EXIT

# Names and order are those of tests/src/support_table.rs. What no test has seen is an empty cell, which the text below the table
# has to explain.
names() { sed -n "/^pub const $1:/{:more;/;\$/!{N;b more};s/.*= //;p}" tests/src/support_table.rs | grep -o '"[^"]*"' | tr -d '"'; }
mapfile -t integrations < <(names INTEGRATIONS)
mapfile -t consumers < <(names CONSUMERS)
{
    printf '| integration |'; printf ' %s |' "${consumers[@]}"; printf '\n| --- |'
    printf ' --- |%.0s' "${consumers[@]}"; printf '\n'
    for integration in "${integrations[@]}"; do
        printf '| %s |' "$integration"
        for consumer in "${consumers[@]}"; do
            if grep -qxF "$integration"$'\t'"$consumer" "$lines"; then printf ' yes |'; else printf '  |'; fi
        done
        printf '\n'
    done
} >"$table"

begin='<!-- support: begin -->'
end='<!-- support: end -->'
if [ -n "$write" ]; then
    sed -i -e "/^$begin\$/,/^$end\$/{/^$begin\$/{p;r $table
};/^$end\$/p;d}" docs/tools.md
elif ! diff -u --label docs/tools.md --label 'this run' <(sed "1,/^$begin\$/d; /^$end\$/,\$d" docs/tools.md) "$table"; then
    echo "support-table: docs/tools.md (-) and this run (+) disagree; ci/support-table.sh --write makes them agree" >&2
    exit 1
fi
