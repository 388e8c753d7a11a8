#!/usr/bin/env bash
# Checks that libjitlisten.so exports exactly the functions that include/jitlisten.h declares, and that the header
# compiles alone as C11 and C++17.
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

# Remove comments, then take every name that precedes a parenthesis.
cc -fpreprocessed -E -P include/jitlisten.h 2>/dev/null | grep -oE '\bjitlisten_[a-z0-9_]+ *\(' | tr -d ' (' |
    sort -u >"$work/declared"
# Functions for the command: facts about the library (shim/src/doctor/facts.rs) and `record -p` (capi/src/attached.rs).
facts=$'jitlisten_facts\njitlisten_attached\njitlisten_record_end'
printf '%s\n' "$facts" | sort -u - "$work/declared" -o "$work/declared"
# Interposed libc functions, through which the recorder sees new threads, signal handlers, exits and sanitizers
# (capi/src/sanitizer.rs). They have no symbol version, because programs request libc's.
ours='pthread_create|execv(e|p|pe|eat)?|execl[ep]?|fexecve|_exit|_Exit|quick_exit|sig(action|altstack|nal|nalfd|pending|suspend|timedwait|wait|waitinfo)'
ours+='|syscall|prctl|chroot|unshare|setns|set(uid|euid|reuid|resuid)|__asan_default_options|__tsan_default_suppressions'
nm -D --defined-only --with-symbol-versions "$library" | awk '$2 != "A" && $NF !~ /^('"$ours"')(@|$)/ { print $NF }' |
    sort -u >"$work/exported"
if [ "$(nm -D --defined-only --with-symbol-versions "$library" | grep -cE " T ($ours)(@@Base)?\$")" != 33 ]; then
    echo "exports: $ours: one is missing, or has a version" >&2
    exit 1
fi
# Append the version that the header's functions have.
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
    if compiles "$mistake"; then echo "exports: $mistake compiles" >&2; exit 1; fi
done
# In C++, structures must be usable without the `struct` keyword.
printf '#include <jitlisten.h>\njitlisten_statistics s{}; jitlisten_record_statistics r{}; jitlisten_options o{};\n' |
    c++ -std=c++17 "${strict[@]}" -fsyntax-only -x c++ -

echo "exports: $(wc -l <"$work/declared") functions, as declared"
