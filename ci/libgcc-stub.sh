#!/usr/bin/env bash
# Creates a stub libgcc_s.so.1 for linking. zig would otherwise link its own libunwind into the library, so an
# `.eh_frame` that LLVM passes to `__register_frame` would not reach the process's libgcc_s.
#
#   ci/libgcc-stub.sh DIRECTORY COMPILER...    the compiler, such as `zig cc -target aarch64-linux-gnu`
set -euo pipefail
directory=${1:?a directory}
shift

mkdir -p "$directory"
declare -A functions=(
    [GCC_3.0]='_Unwind_DeleteException _Unwind_GetDataRelBase _Unwind_GetGR _Unwind_GetIP _Unwind_GetLanguageSpecificData
        _Unwind_GetRegionStart _Unwind_GetTextRelBase _Unwind_RaiseException _Unwind_Resume _Unwind_SetGR _Unwind_SetIP'
    [GCC_3.3]='_Unwind_Backtrace _Unwind_FindEnclosingFunction _Unwind_GetCFA'
    [GCC_4.2.0]='_Unwind_GetIPInfo'
)
# libgcc's version script for glibc (`libgcc/config/libgcc-glibc.ver`) gives these functions the versions under which
# glibc once exported them. x86_64 has no symbols that old.
registry=GCC_3.0
case "$*" in *aarch64*) registry=GLIBC_2.0 ;; esac
functions[$registry]+=' __register_frame __deregister_frame'
: >"$directory/stub.c"
for version in GLIBC_2.0 GCC_3.0 GCC_3.3 GCC_4.2.0; do
    [ -n "${functions[$version]:-}" ] || continue
    printf '%s { global:' "$version"
    for function in ${functions[$version]}; do
        printf ' %s;' "$function"
        printf 'void %s(void) {}\n' "$function" >>"$directory/stub.c"
    done
    printf ' };\n'
done >"$directory/stub.map"
"$@" -shared -nostdlib -fPIC -o "$directory/libgcc_s.so.1" -Wl,-soname,libgcc_s.so.1 \
    -Wl,--version-script="$directory/stub.map" "$directory/stub.c"
