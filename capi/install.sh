#!/usr/bin/env bash
# Installs or uninstalls the libraries, the headers and the pkg-config file.
#
#   [PREFIX=/usr/local] [LIBDIR=$PREFIX/lib] [DESTDIR=] capi/install.sh install|uninstall
#
# rustc passes an unversioned version script to the linker, and linkers accept only one. The installed shared library is
# therefore linked here from the static library. It contains the same code, with the version JITLISTEN_0.1 on its
# exports. The shared library in target/release has no symbol versions.
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
    rm -f "$lib/libjitlisten.so" "$lib/libjitlisten.a" "$lib/pkgconfig/jitlisten.pc" "$include/jitlisten.h" \
        "$include/jitlisten_llvm.hpp"
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
    sed -e "s|@PREFIX@|$prefix|; s|@LIBDIR@|$libdir|; s|@VERSION@|$version|; s|@PRIVATE@|$private|" capi/jitlisten.pc.in \
        >"$work/jitlisten.pc"
    remove
    install -d "$lib/pkgconfig" "$include"
    install -m 755 "$work/libjitlisten.so" "$lib/libjitlisten.so.$version"
    ln -s "libjitlisten.so.$version" "$lib/$soname"
    ln -s "$soname" "$lib/libjitlisten.so"
    install -m 644 "$built/libjitlisten.a" "$lib/"
    install -m 644 "$work/jitlisten.pc" "$lib/pkgconfig/"
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
