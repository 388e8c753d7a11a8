#!/usr/bin/env bash
# What libjitlisten.so exports is what include/jitlisten.h declares, not one symbol more or less; the header is a page
# that compiles alone, as C11 and as C++17.
#
#   ci/exports.sh [target directory, default target/release]
#   ci/exports.sh --versions LIBRARY    an installed library: every symbol has the version of the header
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" = --versions ]; then
    library=$2 versions=1
else
    library=${1:-target/release}/libjitlisten.so versions=
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Comments away, then every name before a parenthesis.
cc -fpreprocessed -E -P include/jitlisten.h 2>/dev/null | grep -oE '\bjitlisten_[a-z0-9_]+ *\(' | tr -d ' (' |
    sort -u >"$work/declared"
# pthread_create stands in for libc's, so that threads that begin while a recording is made are seen. It has no version, as
# programs ask for libc's.
nm -D --defined-only --with-symbol-versions "$library" | awk '$2 != "A" && $NF !~ /^pthread_create(@|$)/ { print $NF }' |
    sort -u >"$work/exported"
if ! nm -D --defined-only --with-symbol-versions "$library" | grep -qE ' T pthread_create(@@Base)?$'; then
    echo "exports: pthread_create is missing, or has a version" >&2
    exit 1
fi
# The version that the header promises.
if [ -n "$versions" ]; then sed -i 's/$/@@JITLISTEN_0.1/' "$work/declared"; fi
if ! diff -u "$work/declared" "$work/exported"; then
    echo "exports: the header declares (-) and the library exports (+) different things" >&2
    exit 1
fi
if readelf -d "$library" | grep -i 'NEEDED.*LLVM'; then
    echo "exports: libjitlisten.so must not link LLVM" >&2
    exit 1
fi

strict=(-Wall -Wextra -Werror -pedantic -Iinclude)
cc -std=c11 "${strict[@]}" -fsyntax-only -x c include/jitlisten.h
c++ -std=c++17 "${strict[@]}" -fsyntax-only -x c++ include/jitlisten.h

echo "exports: $(wc -l <"$work/declared") functions, as declared"
