#!/usr/bin/env bash
# What libjitlisten.so exports is what include/jitlisten.h declares, not one symbol more or less; the header is a page
# that compiles alone, as C11 and as C++17; the tour of it compiles as both and runs.
#
#   ci/exports.sh [target directory, default target/release]
set -euo pipefail
cd "$(dirname "$0")/.."

built=$(realpath "${1:-target/release}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Comments away, then every name before a parenthesis.
cc -fpreprocessed -E -P include/jitlisten.h 2>/dev/null | grep -oE '\bjitlisten_[a-z0-9_]+ *\(' | tr -d ' (' |
    sort -u >"$work/declared"
nm -D --defined-only "$built/libjitlisten.so" | awk '{ print $NF }' | sort -u >"$work/exported"
if ! diff -u "$work/declared" "$work/exported"; then
    echo "exports: the header declares (-) and the library exports (+) different things" >&2
    exit 1
fi
if readelf -d "$built/libjitlisten.so" | grep -i 'NEEDED.*LLVM'; then
    echo "exports: libjitlisten.so must not link LLVM" >&2
    exit 1
fi

strict=(-Wall -Wextra -Werror -pedantic -Iinclude)
cc -std=c11 "${strict[@]}" -fsyntax-only -x c include/jitlisten.h
c++ -std=c++17 "${strict[@]}" -fsyntax-only -x c++ include/jitlisten.h

cc -std=c11 "${strict[@]}" -x c tests/c/tour.c -o "$work/tour-c" -L"$built" -ljitlisten -Wl,-rpath,"$built"
c++ -std=c++17 "${strict[@]}" -x c++ tests/c/tour.c -o "$work/tour-cpp" -L"$built" -ljitlisten -Wl,-rpath,"$built"
cc -std=c11 "${strict[@]}" -x c tests/c/tour.c -x none "$built/libjitlisten.a" -o "$work/tour-static" \
    -lgcc_s -lutil -lrt -lpthread -lm -ldl
for tour in c cpp static; do "$work/tour-$tour" >"$work/said" || { cat "$work/said"; exit 1; }; done
echo "exports: $(wc -l <"$work/declared") functions, as declared"
