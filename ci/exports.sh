#!/usr/bin/env bash
# Checks that libjitlisten.so exports exactly what include/jitlisten.h declares or names, and that the header compiles
# alone as C11 and C++17.
#
#   ci/exports.sh [target directory, default target/release]
#   ci/exports.sh --versions LIBRARY    an installed library: it interposes nothing, and every symbol has the header's
#                                       version
set -euo pipefail
# shellcheck source=ci/common.sh
. "$(dirname "$0")/common.sh"

if [ "${1:-}" = --versions ]; then
    library=$2 versions=1
else
    library=${1:-target/release}/libjitlisten.so versions=
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Remove comments, then take every name that precedes a parenthesis.
cc -fpreprocessed -E -P include/jitlisten.h 2>/dev/null | grep -oE '\bjitlisten_[a-z0-9_]+ *\(' | tr -d ' (' |
    sort -u >"$work/declared"
# The paragraph "Symbols" of the header lists the other exports: symbols for the command, and interposed functions, which
# only the library to preload has.
symbols() { sed -n '/^ \* Symbols$/,/^ \* Two copies$/p' include/jitlisten.h | grep -E "$1" | grep -oE "$2"; }
symbols . '\bjitlisten_(facts|attached|record_end)\b' >>"$work/declared"
if [ -n "$versions" ]; then
    sed -i 's/$/@@JITLISTEN_0.1/' "$work/declared"
else
    { symbols '^ \*     ' '\b[a-zA-Z0-9_]+\b' && symbols . '\b__[at]san_\w+\b'; } >>"$work/declared"
fi
sort -u "$work/declared" -o "$work/declared"
nm -D --defined-only --with-symbol-versions "$library" | awk '$2 != "A" { sub("@@Base", "", $NF); print $NF }' | sort -u >"$work/exported"
if ! diff -u "$work/declared" "$work/exported"; then
    fail "the header declares (-) and the library exports (+) different things"
fi
if readelf -d "$library" | grep -i 'NEEDED.*LLVM'; then
    fail "libjitlisten.so must not link LLVM"
fi

strict=(-Wall -Wextra -Werror -pedantic -Iinclude)
# Structures must not have unnamed padding.
cc -std=c11 "${strict[@]}" -Wpadded -fsyntax-only -x c include/jitlisten.h
c++ -std=c++17 "${strict[@]}" -Wpadded -fsyntax-only -x c++ include/jitlisten.h

# compiles STATEMENT: true if the statement compiles inside a function, both as C and as C++.
compiles() {
    printf '#include <jitlisten.h>\nvoid f(jitlisten_object object, jitlisten_unwind registration);\n%s\n' \
        "void f(jitlisten_object object, jitlisten_unwind registration) { (void)object, (void)registration; $1; }" >"$work/some.c"
    cc -std=c11 "${strict[@]}" -fsyntax-only "$work/some.c" 2>"$work/output" &&
        c++ -std=c++17 "${strict[@]}" -fsyntax-only -x c++ "$work/some.c" 2>>"$work/output"
}
# Object ids and registration ids must not convert to each other or to integers.
compiles 'jitlisten_freeing(object), jitlisten_unwind_deregister(registration)' || { cat "$work/output" >&2; exit 1; }
for mistake in 'jitlisten_freeing(registration)' 'jitlisten_unwind_deregister(object)' 'jitlisten_finalized(1)' 'object = registration'; do
    if compiles "$mistake"; then fail "$mistake compiles"; fi
done
# In C++, structures must be usable without the `struct` keyword.
printf '#include <jitlisten.h>\njitlisten_statistics s{}; jitlisten_record_statistics r{}; jitlisten_options o{};\n' |
    c++ -std=c++17 "${strict[@]}" -fsyntax-only -x c++ -

echo "exports: $(wc -l <"$work/declared") symbols, as in the header"
