#!/usr/bin/env bash
# Tests the library on aarch64: cross-compiles it, creates a Debian 13 arm64 machine, boots it in QEMU, runs
# tests/aarch64/scenarios.py in it, and prints the results. Emulation is slow. See docs/support.md.
#
#   ci/aarch64.sh [--cpu NAME] [SCENARIO...]   default: every scenario, on `max`
#   ci/aarch64.sh --library                    builds target/aarch64-unknown-linux-gnu/release/libjitlisten.so only
#
# Requires Debian 12 or newer, and root (or sudo) for packages and for the userland. Creating the userland takes most of
# the first run; it is kept in target/aarch64 until the list of packages changes.
set -euo pipefail
# shellcheck source=ci/common.sh
. "$(dirname "$0")/common.sh"

triple=aarch64-unknown-linux-gnu
work=$PWD/target/aarch64
built=$PWD/target/$triple/release
release=trixie
# Use QEMU's implementation-defined pointer authentication: emulating the architected algorithm (QARMA) dominates the
# run time. SVE is off for the same reason.
cpu=max,pauth-impdef=on,sve=off
machine_minutes=${JITLISTEN_AARCH64_MINUTES:-60}
here=(mmdebstrap qemu-system-arm qemu-user-static binfmt-support gcc-aarch64-linux-gnu g++-aarch64-linux-gnu libc6-dev-arm64-cross
    libc6-dev e2fsprogs arch-test python3-pip clang-14)
there=(linux-image-arm64 initramfs-tools busybox kmod linux-perf gdb binutils python3 libunwind8 libunwind-dev libgcc-s1 procps
    llvm-19)
wheels=("${newest[@]}" py-spy==0.4.3 coverage==7.17.3)
python=3.13

# kept NAME KEY: true if NAME was built for this key. `keep NAME KEY` records that.
kept() { [ "$(cat "$work/$1.key" 2>/dev/null)" = "$2" ]; }
keep() { printf '%s' "$2" >"$work/$1.key"; }

# --- packages of this machine ---------------------------------------------------------------------------------------

install_packages() {
    local package missing=()
    for package in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    say "installing ${missing[*]}"
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300)
    retry as_root "${apt[@]}" update >&2 || fail "apt-get update"
    retry as_root "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >&2 || fail "install ${missing[*]}"
}

# --- the library ----------------------------------------------------------------------------------------------------

# rustup can add the target. Distributions package its standard library as Rust for another architecture.
prepare_rust() {
    rustup target add $triple >&2 2>/dev/null && return
    say "rustup cannot add $triple: Debian's rustc-web"
    as_root dpkg --add-architecture arm64
    install_packages rustc-web libstd-rust-web-dev:arm64
    export RUSTC=/usr/bin/rustc
}

cross() { CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc cargo "$@" --target $triple; }

build_library() {
    prepare_rust
    cross build --release -p jitlisten-capi >&2
    # Print the system requirements: the newest symbol version of each library.
    aarch64-linux-gnu-objdump -T "$built/libjitlisten.so" | grep -o '(\(GLIBC\|GCC\)_[0-9.]*)' | tr -d '()' | sort -uV |
        paste -sd ' ' | sed 's/^/aarch64: symbol versions: /' >&2
}

# --- the machine ----------------------------------------------------------------------------------------------------

enable_foreign_programs() {
    [ -e /proc/sys/fs/binfmt_misc/status ] || as_root mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
    [ -e /proc/sys/fs/binfmt_misc/qemu-aarch64 ] || as_root update-binfmts --enable qemu-aarch64
}

# Debian's kernel builds the drivers of the disk and its file system as modules. An initrd with only these modules is
# built in seconds.
initrd_hook() {
    cat <<'EOF'
set -e
mkdir -p "$1/etc/initramfs-tools/conf.d" "$1/etc/initramfs-tools/hooks"
echo MODULES=list >"$1/etc/initramfs-tools/conf.d/jitlisten"
printf '%s\n' '#!/bin/sh' '[ "$1" = prereqs ] && exit' '. /usr/share/initramfs-tools/hook-functions' \
    'manual_add_modules virtio_blk virtio_pci virtio_mmio ext4' >"$1/etc/initramfs-tools/hooks/jitlisten"
chmod +x "$1/etc/initramfs-tools/hooks/jitlisten"
EOF
}

# shellcheck disable=SC2317 # `retry` calls this function
remake_userland() {
    as_root rm -rf --one-file-system "$work/root"
    as_root mmdebstrap --arch=arm64 --variant=minbase --format=directory --aptopt='Acquire::Retries "5"' \
        --include="$(IFS=,; echo "${there[*]}")" --essential-hook="$(initrd_hook)" "$release" "$work/root" >"$work/userland.log" 2>&1
}

make_userland() {
    local key
    key="$release ${there[*]} $(initrd_hook)"
    kept root "$key" && return
    say "making a userland of $release for arm64: ten minutes or more"
    enable_foreign_programs
    rm -f "$work"/root.key "$work"/disk.key
    retry remake_userland || { tail -n 30 "$work/userland.log" >&2; fail "no userland"; }
    keep root "$key"
}

install_wheels() {
    local key="$python ${wheels[*]}" platform platforms=()
    kept wheels "$key" && [ -d "$work/root/opt/wheels" ] && return
    for platform in manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014; do
        platforms+=(--platform "${platform}_aarch64")
    done
    as_root rm -rf "$work/root/opt/wheels"
    rm -f "$work/disk.key"
    retry as_root python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore --no-compile --only-binary :all: \
        "${platforms[@]}" --implementation cp --python-version $python --target "$work/root/opt/wheels" "${wheels[@]}" >&2 ||
        fail "pip install"
    # Compile Numba's sources ahead of time: in the machine this takes minutes, in every process that cannot write the
    # result.
    enable_foreign_programs
    as_root chroot "$work/root" python3 -m compileall -q -j 2 -x /tests/ /opt/wheels >/dev/null || say "not all of the wheels compiles"
    keep wheels "$key"
}

make_disk() {
    local key size
    key="$(cat "$work"/root.key "$work"/wheels.key) $(cat tests/aarch64/init)"
    kept disk "$key" && return
    as_root install -m 755 tests/aarch64/init "$work/root/jitlisten-init"
    size=$(as_root du -sm --one-file-system "$work/root" | cut -f 1)
    rm -f "$work/disk.img"
    as_root mkfs.ext4 -q -F -d "$work/root" "$work/disk.img" $((size * 5 / 4 + 2048))M
    as_root cp "$work"/root/boot/vmlinuz-* "$work/kernel"
    as_root cp "$work"/root/boot/initrd.img-* "$work/initrd"
    as_root chmod a+rw "$work/disk.img" "$work/kernel" "$work/initrd"
    keep disk "$key"
}

# --- requirements of the scenarios --------------------------------------------------------------------------------------

compile_programs() {
    local bin=$work/payload/bin headers=$work/headers strict=(-g -O1 -Wall -Wextra -Werror -Iinclude) unwind
    local library=("-L$built" -ljitlisten -lpthread)
    mkdir -p "$bin" "$headers"
    aarch64-linux-gnu-gcc -std=c11 -pedantic "${strict[@]}" tests/c/tour.c -o "$bin/tour-c11" "${library[@]}"
    aarch64-linux-gnu-g++ -std=c++17 -pedantic "${strict[@]}" -x c++ tests/c/tour.c -x none -o "$bin/tour-cpp17" "${library[@]}"
    aarch64-linux-gnu-gcc -std=c11 -pedantic "${strict[@]}" tests/c/tour.c "$built/libjitlisten.a" -o "$bin/tour-static" \
        -lgcc_s -lutil -lrt -lpthread -lm -ldl
    aarch64-linux-gnu-gcc "${strict[@]}" -fno-omit-frame-pointer tests/hosts/raw_jit.c -o "$bin/raw_jit" "${library[@]}"
    aarch64-linux-gnu-gcc "${strict[@]}" tests/hosts/through_hooks.c -o "$bin/through_hooks" -ldl -lpthread
    aarch64-linux-gnu-gcc "${strict[@]}" tests/hosts/sampled.c -o "$bin/sampled" -ldl -lm -lpthread
    clang-14 --target=aarch64-linux-gnu -isystem /usr/aarch64-linux-gnu/include -O1 -g -fno-omit-frame-pointer \
        -fasynchronous-unwind-tables -emit-llvm -c tests/hosts/chain.c -o "$bin/chain.bc"
    aarch64-linux-gnu-objcopy -N __jit_debug_descriptor -N __jit_debug_register_code \
        "$work/root/opt/wheels/llvmlite/binding/libllvmlite.so" "$work/payload/unlisted.so"
    # Compile against the machine's LLVM, which needs a newer C library than this system has.
    aarch64-linux-gnu-gcc "${strict[@]}" -DOLD_CONTEXTS tests/hosts/embedded.c -o "$bin/embedded" \
        "$work/root/usr/lib/aarch64-linux-gnu/libLLVM.so.19.1" -Wl,--allow-shlib-undefined -lpthread -ldl
    aarch64-linux-gnu-gcc "${strict[@]}" tests/hosts/own_memory.c -o "$bin/own_memory" \
        "$work/root/usr/lib/aarch64-linux-gnu/libLLVM.so.19.1" -Wl,--allow-shlib-undefined -lpthread -ldl
    for unwind in "$work"/root/usr/include/aarch64-linux-gnu/libunwind*.h; do ln -sf "$unwind" "$headers/"; done
    aarch64-linux-gnu-gcc "${strict[@]}" -I"$headers" -shared -fPIC -fexceptions tests/hosts/walker.c -o "$bin/walker.so" \
        -L"$work/root/usr/lib/aarch64-linux-gnu" -Wl,--no-as-needed -lunwind -Wl,--allow-shlib-undefined
}

compile_unit_tests() {
    local binary unit=$work/payload/unit
    mkdir -p "$unit"
    cross test --release --no-run --lib -p jitlisten -p jitlisten-files -p jitlisten-names -p jitlisten-unwinder -p unwind-register -p jitlisten-shim -p jitlisten-sampler --message-format=json 2>"$work/unit.log" |
        grep -o '"executable":"[^"]*"' | cut -d '"' -f 4 >"$work/unit.list" || { cat "$work/unit.log" >&2; fail "unit tests"; }
    while read -r binary; do
        aarch64-linux-gnu-strip --strip-debug -o "$unit/$(basename "${binary%-*}")" "$binary"
    done <"$work/unit.list"
}

# Unpacks the wheel of `make wheel-aarch64`, if it exists.
unpack_wheel() {
    local wheel
    wheel=$(find target/wheels -name 'jitlisten-*_aarch64.whl' 2>/dev/null | head -n 1) || true
    [ -n "$wheel" ] || { say "no wheel for aarch64: make wheel-aarch64; scenarios that need it cannot run"; return 0; }
    python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore --no-deps --only-binary :all: \
        --platform manylinux_2_28_aarch64 --implementation cp --python-version $python --target "$work/payload/wheel" "$wheel" >&2
}

make_payload() {
    rm -rf "$work/payload"
    mkdir -p "$work/payload/results"
    cp tests/aarch64/scenarios.py "$built/libjitlisten.so" "$work/payload/"
    cp -r tests/hosts "$work/payload/hosts"
    cp -r jitlisten/testdata "$work/payload/testdata"
    # The unit tests look for the manifest at this path.
    echo "$PWD/jitlisten" >"$work/payload/manifest"
    [ $# = 0 ] || printf '%s\n' "$@" >"$work/payload/only"
    unpack_wheel
    compile_programs
    compile_unit_tests
    rm -f "$work/payload.img"
    mkfs.ext4 -q -F -d "$work/payload" "$work/payload.img" 1024M
}

# --- the run --------------------------------------------------------------------------------------------------------

boot() {
    local ended=0
    say "booting; console in target/aarch64/console.log"
    timeout "$((machine_minutes * 60))" qemu-system-aarch64 -M virt,gic-version=3 -cpu "$cpu" -accel tcg,thread=multi -smp 2 -m 4096 \
        -nodefaults -nographic -no-reboot -serial "file:$work/console.log" -kernel "$work/kernel" -initrd "$work/initrd" \
        -append "console=ttyAMA0 root=/dev/vda rw init=/jitlisten-init panic=-1 quiet" \
        -drive "file=$work/disk.img,format=raw,if=none,id=a,snapshot=on" -device virtio-blk-pci,drive=a \
        -drive "file=$work/payload.img,format=raw,if=none,id=b" -device virtio-blk-pci,drive=b </dev/null || ended=$?
    [ "$ended" != 124 ] || say "not at its end after $machine_minutes minutes"
    rm -rf "$work/results"
    # A machine that was stopped leaves a dirty journal.
    e2fsck -fy "$work/payload.img" >/dev/null 2>&1 || true
    debugfs -R "rdump /results $work" "$work/payload.img" 2>/dev/null
    [ -s "$work/results/table.tsv" ] || { tail -n 30 "$work/console.log" >&2; fail "the machine left no results"; }
}

# Prints the table of results. Fails if a scenario failed or if none finished.
report() {
    local expected=$1 rows
    echo
    paste -sd ';' "$work/results/versions" | sed 's/;/; /g'
    printf '\n| scenario | | seconds | seen |\n| --- | --- | --- | --- |\n'
    awk -F '\t' '{ printf "| %s: %s | %s | %s | %s |\n", $1, $2, $3, $4, $5 }' "$work/results/table.tsv"
    rows=$(wc -l <"$work/results/table.tsv")
    echo
    awk -F '\t' -v rows="$rows" -v expected="$expected" '$3 != "ok" { bad++ } END {
        printf "%d of %d scenarios ran, %d not ok\n", rows, expected, bad; exit bad > 0 || rows != expected }' "$work/results/table.tsv"
}

main() {
    local began expected
    if [ "${1:-}" = --cpu ]; then cpu=$2; shift 2; fi
    mkdir -p "$work"
    install_packages "${here[@]}"
    if [ "${1:-}" = --library ]; then build_library; return; fi
    make_userland
    install_wheels
    make_disk
    build_library
    make_payload "$@"
    began=$SECONDS
    boot
    say "the machine ran for $((SECONDS - began)) s"
    expected=$#
    [ "$expected" -gt 0 ] || expected=$(grep -c '^@scenario' tests/aarch64/scenarios.py)
    report "$expected"
}

# Put everything in one function, so that bash reads the whole script first: it runs for a long time and may be edited
# meanwhile.
main "$@"; exit
