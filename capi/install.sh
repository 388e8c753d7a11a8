#!/usr/bin/env bash
# Installs or uninstalls the libraries, the headers and the pkg-config files.
#
#   [PREFIX=/usr/local] [LIBDIR=$PREFIX/lib] [DESTDIR=] capi/install.sh install|uninstall
#
#   LIBDIR/libjitlisten.so              to link: exports what jitlisten.h declares, with the version JITLISTEN_0.1
#   LIBDIR/libjitlisten.a               to link: the same
#   LIBDIR/jitlisten/libjitlisten.so    for LD_PRELOAD, and to link programs that record themselves: also defines
#                                       functions of libc, for recordings
#   LIBDIR/.debug/                      debug information of the first
#
# rustc passes an unversioned version script to the linker, and linkers accept only one. The libraries to link are
# therefore linked here from the static library, which contains the same code. They keep their symbol table, where gdb
# finds the list of compiled code.
set -euo pipefail
cd "$(dirname "$0")/.."

built=${BUILT:-target/release}
prefix=${PREFIX:-/usr/local}
libdir=${LIBDIR:-$prefix/lib}
lib=${DESTDIR:-}$libdir include=${DESTDIR:-}$prefix/include
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
soname=libjitlisten.so.${version%%.*}
private='-lgcc_s -lutil -lrt -lpthread -lm -ldl'

# Removes all files that install_all installs, whatever their version.
remove() {
    local file
    for file in "$lib/libjitlisten.so".[0-9]*; do
        [[ ! $file =~ \.so\.[0-9]+(\.[0-9]+\.[0-9]+)?$ ]] || rm -f "$file"
    done
    rm -f "$lib/.debug/libjitlisten.so".[0-9]*.debug
    rm -f "$lib/libjitlisten.so" "$lib/libjitlisten.a" "$lib/jitlisten/libjitlisten.so" "$lib/pkgconfig/jitlisten.pc" \
        "$lib/pkgconfig/jitlisten-record.pc" "$lib/pkgconfig/jitlisten-static.pc" "$include/jitlisten.h" "$include/jitlisten_llvm.hpp"
    rmdir "$lib/.debug" "$lib/jitlisten" 2>/dev/null || true
}

install_all() {
    [ -f "$built/libjitlisten.a" ] || { echo "install: $built/libjitlisten.a is missing: cargo build --release" >&2; exit 1; }
    local work
    work=$(mktemp -d)
    # shellcheck disable=SC2064 # expand now: the variable is out of scope at exit
    trap "rm -rf '$work'" EXIT
    # shellcheck disable=SC2086 # the variable holds several arguments
    "${CC:-cc}" -shared -o "$work/libjitlisten.so" -Wl,-soname,"$soname" -Wl,--version-script=capi/jitlisten.map \
        -Wl,--gc-sections -Wl,-z,nodelete -Wl,-z,relro,-z,now \
        -Wl,--whole-archive "$built/libjitlisten.a" -Wl,--no-whole-archive $private
    objcopy --only-keep-debug "$work/libjitlisten.so" "$work/debug"
    strip --strip-debug "$work/libjitlisten.so"
    (cd "$work" && cp debug "libjitlisten.so.$version.debug" &&
        objcopy --add-gnu-debuglink="libjitlisten.so.$version.debug" libjitlisten.so)
    # A single object that keeps only the API's symbols global. Rust's standard library contains bitcode, which is not
    # valid after it was joined.
    ld -r --whole-archive "$built/libjitlisten.a" -o "$work/jitlisten.o"
    objcopy --wildcard --keep-global-symbol='jitlisten_*' --strip-debug --remove-section=.llvmbc \
        --remove-section=.llvmcmd "$work/jitlisten.o"
    ar rcs "$work/libjitlisten.a" "$work/jitlisten.o"
    cp "$built/libjitlisten.so" "$work/preload.so"
    strip --strip-debug "$work/preload.so"
    local name
    for name in jitlisten jitlisten-record jitlisten-static; do
        sed -e "s|@PREFIX@|$prefix|; s|@LIBDIR@|$libdir|; s|@VERSION@|$version|; s|@PRIVATE@|$private|" capi/$name.pc.in \
            >"$work/$name.pc"
    done
    remove
    install -d "$lib/pkgconfig" "$lib/jitlisten" "$lib/.debug" "$include"
    install -m 755 "$work/libjitlisten.so" "$lib/libjitlisten.so.$version"
    install -m 644 "$work/debug" "$lib/.debug/libjitlisten.so.$version.debug"
    install -m 755 "$work/preload.so" "$lib/jitlisten/libjitlisten.so"
    ln -s "libjitlisten.so.$version" "$lib/$soname"
    ln -s "$soname" "$lib/libjitlisten.so"
    install -m 644 "$work/libjitlisten.a" "$lib/"
    install -m 644 "$work"/jitlisten{,-record,-static}.pc "$lib/pkgconfig/"
    for header in include/jitlisten.h include/jitlisten_llvm.hpp; do
        [ ! -f "$header" ] || install -m 644 "$header" "$include/"
    done
}

case ${1:-} in
install) install_all ;;
uninstall) remove ;;
*)
    echo "usage: capi/install.sh install|uninstall" >&2
    exit 2
    ;;
esac
