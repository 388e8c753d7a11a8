#!/usr/bin/env bash
# Compiles the tour of the C API (tests/c/tour.c) as C11 and C++17, links it in every way, and runs it under the
# sanitizers and valgrind; with ThreadSanitizer in the library if a nightly toolchain and its sources are installed.
# Then tests the installation: pkg-config's flags, symbol versions, and that uninstalling leaves nothing.
#
#   ci/tour.sh [target directory, default target/release]
set -euo pipefail
# shellcheck source=ci/common.sh
. "$(dirname "$0")/common.sh"

if [ "$(uname -m)" != x86_64 ]; then
    echo "SKIPPED tour: its machine code is that of x86-64" >&2
    exit 0
fi
built=$(realpath "${1:-target/release}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset JITLISTEN JITLISTEN_LOG JITLISTEN_NAMES LD_PRELOAD
export JITLISTEN_DIR=$work
strict=(-g -O1 -Wall -Wextra -Werror -pedantic)
shared=(-Iinclude -L"$built" "-Wl,-rpath,$built" -ljitlisten -lpthread)
private=(-lgcc_s -lutil -lrt -lpthread -lm -ldl)

tour() {
    local name=$1 began=$SECONDS
    shift
    if ! timeout 400 "$@" >"$work/output" 2>&1; then
        echo "tour: $name fails:" >&2
        cat "$work/output" >&2
        exit 1
    fi
    echo "tour: $name: ok, $((SECONDS - began)) s: $(tail -n 1 "$work/output")"
}

cc -std=c11 "${strict[@]}" tests/c/tour.c -o "$work/c" "${shared[@]}"
tour C11 "$work/c"
c++ -std=c++17 "${strict[@]}" -x c++ tests/c/tour.c -x none -o "$work/cpp" "${shared[@]}"
tour C++17 "$work/cpp"
cc -std=c11 "${strict[@]}" -Iinclude tests/c/tour.c "$built/libjitlisten.a" -o "$work/static" "${private[@]}"
tour static "$work/static"
cc -std=c11 "${strict[@]}" -fsanitize=address,undefined -fno-sanitize-recover=all tests/c/tour.c -o "$work/asan" "${shared[@]}"
tour 'address and undefined behaviour sanitizers' "$work/asan"
if has valgrind; then
    tour valgrind valgrind -q --error-exitcode=1 --fair-sched=yes "$work/c"
fi

# Builds the library and Rust's standard library with a nightly toolchain, because ThreadSanitizer must see every
# access. Links that toolchain's own runtime, because those of gcc 12 and clang 13 lack functions that its compiler
# calls.
nightly_runtime() {
    local sysroot
    sysroot=$(rustc +nightly --print sysroot 2>/dev/null) && [ -d "$sysroot/lib/rustlib/src/rust/library" ] || return 1
    find "$sysroot/lib/rustlib/$target/lib" -name 'librustc*_rt.tsan.a' 2>/dev/null | grep .
}

target=x86_64-unknown-linux-gnu
if runtime=$(nightly_runtime); then
    RUSTFLAGS=-Zsanitizer=thread cargo +nightly build --quiet -Zbuild-std --target $target --target-dir target/tsan --release \
        -p jitlisten-capi --no-default-features
    link=('-Wl,--whole-archive' "$runtime" '-Wl,--no-whole-archive' "${private[@]}")
    # Check first that ThreadSanitizer detects a data race.
    printf '%s\n' '#include <pthread.h>' 'int shared; void *work(void *none) { shared++; return none; }' \
        'int main(void) { pthread_t t; pthread_create(&t, 0, work, 0); work(0); return pthread_join(t, 0); }' >"$work/race.c"
    cc -g -fsanitize=thread -c "$work/race.c" -o "$work/race.o"
    cc "$work/race.o" "${link[@]}" -o "$work/race"
    if "$work/race" >/dev/null 2>&1; then fail "ThreadSanitizer sees no race where one is"; fi
    cc -std=c11 "${strict[@]}" -fsanitize=thread -Iinclude -c tests/c/tour.c -o "$work/threads.o"
    cc "$work/threads.o" target/tsan/$target/release/libjitlisten.a "${link[@]}" -o "$work/threads"
    tour 'thread sanitizer' "$work/threads"
    cc -std=gnu11 "${strict[@]}" -fsanitize=thread -Iinclude -c tests/hosts/exchanged_pages.c -o "$work/exchanged.o"
    cc "$work/exchanged.o" target/tsan/$target/release/libjitlisten.a "${link[@]}" -o "$work/exchanged"
    tour 'thread sanitizer, exchanged pages' "$work/exchanged" 1000
else
    echo "SKIPPED tour under ThreadSanitizer: no nightly toolchain with the sources of the standard library" >&2
fi

# --- installed ------------------------------------------------------------------------------------------------------------

PREFIX=$work/prefix BUILT=$built capi/install.sh install
if has pkg-config; then
    export PKG_CONFIG_PATH=$work/prefix/lib/pkgconfig
    # shellcheck disable=SC2046 # pkg-config prints several arguments
    cc -std=c11 "${strict[@]}" tests/c/tour.c -o "$work/installed" $(pkg-config --cflags --libs jitlisten) -lpthread
    tour installed env LD_LIBRARY_PATH="$work/prefix/lib" JITLISTEN_LOG="warn:$work/installed.log" "$work/installed"
    # shellcheck disable=SC2046
    cc -std=c11 "${strict[@]}" tests/c/tour.c -o "$work/record" $(pkg-config --cflags --libs jitlisten-record) -lpthread
    tour 'installed, interposing libc' env JITLISTEN_LOG="warn:$work/record.log" "$work/record"
    if ! grep -q 'jitlisten-record' "$work/installed.log" || grep 'jitlisten-record' "$work/record.log"; then
        fail "a recording warns about libc's functions exactly where they are not interposed"
    fi
    # shellcheck disable=SC2046
    cc -std=c11 "${strict[@]}" tests/c/tour.c -o "$work/installed-static" $(pkg-config --cflags --libs jitlisten-static)
    tour 'installed, static' "$work/installed-static"
    if nm "$work/installed-static" | grep -E ' T (pthread_create|sigaction|_exit)$'; then
        fail "the installed static library interposes libc"
    fi
fi
ci/exports.sh --versions "$work/prefix/lib/libjitlisten.so"
PREFIX=$work/prefix capi/install.sh uninstall
left=$(find "$work/prefix" -type f -o -type l)
[ -z "$left" ] || fail "uninstalling leaves $left"
