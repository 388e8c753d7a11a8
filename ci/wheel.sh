#!/usr/bin/env bash
# Builds the wheels and the source distribution into target/wheels and checks their contents. zig links against an old
# glibc.
#
#   ci/wheel.sh [build [TARGET...]]   default: x86_64, and aarch64 if its standard library can be installed
#   ci/wheel.sh library [MACHINE]     the library alone, in target/wheel/cargo/MACHINE-unknown-linux-gnu/wheel
#   ci/wheel.sh test [ARGUMENT...]    installs the wheel of this machine into a fresh environment, and runs
#                                     python/tests/wheel; with -m slow, the slow tests
#   ci/wheel.sh sdist                 builds from the source distribution, as pip does, and runs a Numba program with it
#   ci/wheel.sh userland NAME         tests the wheel in a userland of ci/userland.sh: bullseye (glibc 2.31), sid
#   ci/wheel.sh aarch64               runs the command and the package of the aarch64 wheel under qemu-user
set -euo pipefail
# shellcheck source=ci/common.sh
. "$(dirname "$0")/common.sh"

glibc=2.28
# Maximum size in bytes, since people download the wheel just to try it.
most=$((6 << 20))
tools=$PWD/target/wheel/tools
venv=$PWD/target/wheel/venv
wheels=target/wheels
PATH=$tools/bin:$PATH
# Reproducible builds: no path of this machine in the output.
export RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=$PWD=jitlisten --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo"

version() { sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1; }
of_this_machine() { find "$wheels" -name "jitlisten-$(version)-*_$(uname -m).whl" | head -n 1; }

has_target() { rustup target list --installed 2>/dev/null | grep -qx "$1" || rustup target add "$1" >/dev/null 2>&1; }

# library MACHINE: builds libjitlisten.so and .a. JITLISTEN_LIBRARY names an existing library.
library() {
    local target=$1-unknown-linux-gnu out=$PWD/target/wheel/cargo stub=$PWD/target/wheel/stub-$1
    ci/libgcc-stub.sh "$stub" python-zig cc -target "$1-linux-gnu.$glibc"
    JITLISTEN_LIBGCC_S=$stub/libgcc_s.so.1 cargo zigbuild --quiet --profile wheel --target "$target.$glibc" \
        --target-dir "$out" -p jitlisten-capi
    JITLISTEN_LIBRARY=$out/$target/wheel/libjitlisten.so
    export JITLISTEN_LIBRARY
    check_symbols "$JITLISTEN_LIBRARY"
}

# build MACHINE
build() {
    local target=$1-unknown-linux-gnu out=$PWD/target/wheel/cargo
    library "$1"
    # The backend copies the library into the package. maturin is called directly, because only then does it accept --zig.
    PYTHONPATH=python/build python3 -B -c 'import backend; backend.prepare()'
    maturin build --quiet --zig --target "$target" --compatibility "manylinux_${glibc/./_}" --target-dir "$out" --out "$wheels"
    check_symbols "$out/$target/wheel/jitlisten"
}

# The libraries that PEP 600 allows, restricted to those we need.
allowed='libc.so.6 libm.so.6 libpthread.so.0 libdl.so.2 librt.so.1 libgcc_s.so.1 ld-linux-x86-64.so.2 ld-linux-aarch64.so.1'
# Newest symbol version of each library in RHEL 8 (glibc 2.28, GCC 8). On both processors, libgcc has exported
# `__register_frame` and the unwinder's functions since GCC 3.0, and `_Unwind_GetIPInfo` since 4.2.
declare -A newest_allowed=([GLIBC]=$glibc [GCC]=7.0.0)

# Both files may need only libraries and symbols that exist on a system of that age.
check_symbols() {
    local needed version family
    for needed in $(readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
        [[ " $allowed " == *" $needed "* ]] || fail "$1 needs $needed"
    done
    # Consider only the versions that the file requires, not those that it defines.
    mapfile -t versions < <(readelf -VW "$1" | awk '/^Version needs/ { on = 1 } on' | sed -n 's/.*Name: \([^ ]*\).*/\1/p' | sort -uV)
    for version in "${versions[@]}"; do
        family=${version%%_*}
        [ -n "${newest_allowed[$family]:-}" ] || fail "$1 needs $version"
        is_at_most "${version#*_}" "${newest_allowed[$family]}" || fail "$1 needs $version"
    done
    echo "wheel: $1 needs ${versions[*]}"
}

is_at_most() { [ "$(printf '%s\n' "$1" "$2" | sort -V | tail -n 1)" = "$2" ]; }

# part_of WHEEL NAME: prints a file in the wheel's metadata.
part_of() {
    python3 -c 'import sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
print(wheel.read(next(n for n in wheel.namelist() if n.endswith(".dist-info/" + sys.argv[2]))).decode())' "$1" "$2"
}

check_wheel() {
    local size names metadata tags
    size=$(stat -c %s "$1")
    [ "$size" -le $most ] || fail "$1 has $size bytes, more than $most"
    names=$(python3 -m zipfile -l "$1")
    for part in jitlisten/libjitlisten.so jitlisten/py.typed jitlisten/include/jitlisten.h jitlisten/THIRD-PARTY-LICENSES \
        jitlisten/_site/sitecustomize.py \
        scripts/jitlisten; do
        grep -q "$part" <<<"$names" || fail "$1 lacks $part"
    done
    # Capture the whole output before the search: grep exits at the first match, and the writing program would then
    # fail.
    metadata=$(part_of "$1" METADATA)
    tags=$(part_of "$1" WHEEL)
    ! grep -q '^Requires-Dist' <<<"$metadata" || fail "$1 has dependencies"
    grep -qx 'Requires-Python: >=3.8' <<<"$metadata" || fail "$1 is not for Python 3.8"
    grep -qE "^Tag: py3-none-manylinux_${glibc/./_}_(x86_64|aarch64)$" <<<"$tags" || fail "$1 has another tag"
    echo "wheel: $1, $size bytes"
}

build_all() {
    local machines=("$@") machine wheel
    [ ${#machines[@]} -gt 0 ] || machines=(x86_64 aarch64)
    mkdir -p $wheels
    rm -f $wheels/jitlisten-*
    for machine in "${machines[@]}"; do
        if has_target "$machine-unknown-linux-gnu"; then build "$machine"; else
            echo "SKIPPED wheel: no Rust standard library for $machine" >&2
        fi
    done
    for wheel in "$wheels"/jitlisten-*.whl; do check_wheel "$wheel"; done
    PYTHONPATH=python/build python3 -B -c 'import backend, sys; print("wheel:", backend.build_sdist(sys.argv[1]))' $wheels
}

# Creates a fresh environment that contains the wheel and its tests' requirements, but nothing from the source tree.
make_venv() {
    local numba=target/venv/numba-0.68.1/bin/python
    [ -x $numba ] || fail "no $numba: see ci/setup.sh"
    rm -rf "$venv"
    "$(realpath $numba)" -m venv "$venv"
    # Reuse the packages of the pinned environment by path, to avoid downloading them again.
    "$numba" -c 'import site; print(site.getsitepackages()[0])' >"$("$venv/bin/python" -c 'import site
print(site.getsitepackages()[0])')/pinned.pth"
    # Also reuse a notebook kernel, joblib, Dask, mpi4py and Scalene by path; without them, their tests are skipped.
    local name environment
    for environment in target/wheel/notebook target/venv/pools; do
        name=${environment##*/}
        [ ! -x $environment/bin/python ] || $environment/bin/python -c 'import site; print(site.getsitepackages()[0])' \
            >"$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')/$name.pth"
    done
    "$venv/bin/pip" install -q --disable-pip-version-check --no-index "$(of_this_machine)"
}

run_tests() {
    [ -n "$(of_this_machine)" ] || fail "no wheel: ci/wheel.sh build"
    make_venv
    # Checks the types like a user's type checker, for the oldest and the newest Python that mypy supports.
    local version what=()
    for version in 3.9 3.14; do
        "$tools/bin/mypy" --python-executable "$venv/bin/python" --python-version $version --strict -p jitlisten
    done
    # If the arguments name no file or directory, run all tests.
    for version in "$@"; do if [ -e "${version%%::*}" ]; then what=("$@"); fi; done
    [ ${#what[@]} -gt 0 ] || what=(python/tests/wheel -m 'not slow' "$@")
    # Use several workers, because most tests mainly wait. Tests in the same group run one after another.
    JITLISTEN_TEST_PYTHON=$venv/bin/python PYTHONDONTWRITEBYTECODE=1 ci/pytest.sh "$tools/bin/pytest" -q -n 6 \
        --dist loadgroup "${what[@]}"
}

# Builds in an isolated environment, as pip does. Downloads maturin, and any crates that cargo has not cached.
from_source() {
    local source fresh=$PWD/target/wheel/sdist-venv began=$SECONDS pid
    source=$(find "$wheels" -name "jitlisten-$(version).tar.gz")
    [ -n "$source" ] || fail "no source distribution: ci/wheel.sh build"
    rm -rf "$fresh"
    "$(realpath target/venv/numba-0.68.1/bin/python)" -m venv "$fresh"
    PATH=${PATH#"$tools/bin:"} "$fresh/bin/pip" install -q --disable-pip-version-check "$source"
    echo "wheel: built from $source in $((SECONDS - began)) s"
    cd /
    pid=$(NUMBA_CACHE_DIR=$fresh/cache "$fresh/bin/jitlisten" run --sinks perfmap -- \
        "$OLDPWD/target/venv/numba-0.68.1/bin/python" "$OLDPWD/python/tests/wheel/programs/kernel.py" once | sed -n 's/^pid //p')
    grep -F '__main__.burn(int64)' "/tmp/perf-$pid.map"
    "$fresh/bin/python" -c 'import jitlisten; jitlisten.enable("perfmap"); print(jitlisten.status().version)'
    cd "$OLDPWD"
    rm -rf "$fresh"
}

# Tests without aarch64 hardware: runs the command and loads the library through the package, in the userland of
# ci/aarch64.sh.
on_aarch64() {
    local wheel root=${JITLISTEN_AARCH64_ROOT:-$PWD/target/aarch64/root} unpacked
    wheel=$(find "$wheels" -name "jitlisten-$(version)-*_aarch64.whl")
    [ -n "$wheel" ] || fail "no wheel: ci/wheel.sh build aarch64"
    [ -x "$root/usr/bin/python3" ] || fail "no userland in $root: make test-aarch64 makes one"
    unpacked=$PWD/target/wheel/unpacked-aarch64
    rm -rf "$unpacked"
    python3 -m zipfile -e "$wheel" "$unpacked"
    mkdir "$unpacked/bin"
    mv "$unpacked"/jitlisten-*.data/scripts/jitlisten "$unpacked/bin/"
    chmod 755 "$unpacked/bin/jitlisten"
    # binfmt_misc makes the kernel start qemu for every program in the userland. Nothing is written there.
    # shellcheck disable=SC2016 # the inner shells expand these variables
    unshare --mount sh -euc '
        mount --rbind /proc "$1/proc"; mount --rbind /dev "$1/dev"; mount -t tmpfs -o mode=1777 tmpfs "$1/tmp"
        mkdir "$1/tmp/wheel"; mount --bind "$2" "$1/tmp/wheel"
        exec chroot "$1" env -i PATH=/usr/bin:/bin PYTHONPATH=/tmp/wheel sh -euc "$3"
    ' sh "$root" "$unpacked" '
        uname -m; ldd --version | head -n 1; /tmp/wheel/bin/jitlisten --version
        /tmp/wheel/bin/jitlisten doctor | sed -n "/^The program/,/^$/p"
        /tmp/wheel/bin/jitlisten run --sinks perfmap -- python3 -B -c "import sys; print(sys.version.split()[0])"
        python3 -B -c "import jitlisten; jitlisten.enable(); print(jitlisten.status().sinks, jitlisten.functions())"
    '
}

# Checks, in an old or new userland, that the command finds its library and that Numba's code has names.
in_userland() {
    local unpacked=$PWD/target/wheel/unpacked python
    rm -rf "$unpacked"
    python3 -m zipfile -e "$(of_this_machine)" "$unpacked"
    # Directory layout of `pip install --target`.
    mkdir -p "$unpacked/bin"
    mv "$unpacked"/jitlisten-*.data/scripts/jitlisten "$unpacked/bin/"
    chmod 755 "$unpacked/bin/jitlisten"
    for python in "target/userlands/$1"/opt/venv*/numba-0.68.1/bin/python; do
        one_userland "$1" "$unpacked" "${python#"target/userlands/$1"}"
    done
}

# one_userland NAME PREFIX PYTHON
one_userland() {
    # shellcheck disable=SC2016 # the inner shell expands these variables
    ci/in-userland.sh "$1" sh -euc '
        "$1/bin/jitlisten" --version
        ldd --version | head -n 1
        export NUMBA_CACHE_DIR=/tmp/cache
        "$1/bin/jitlisten" run -- "$2" python/tests/wheel/programs/kernel.py once >/tmp/output
        pid=$(sed -n "s/^pid //p" /tmp/output)
        grep -F "__main__.burn(int64)" "/tmp/perf-$pid.map" | head -n 1
        PYTHONPATH=$1 "$2" -B -c "import jitlisten, sys; jitlisten.enable(); print(sys.version.split()[0], jitlisten.status().sinks)"
        # Process that was started without jitlisten.
        : >/tmp/running
        "$2" python/tests/wheel/programs/kernel.py >>/tmp/running & pid=$!
        trap "kill $pid" EXIT
        until grep -q ready /tmp/running; do sleep 0.1; done
        "$1/bin/jitlisten" attach "$pid"
        "$1/bin/jitlisten" doctor "$pid" | sed -n "/^The program/,/^$/p"
    ' sh "$2" "$3"
}

case ${1:-build} in
build) shift || true; build_all "$@" ;;
library) library "${2:-$(uname -m)}" ;;
test) shift; run_tests "$@" ;;
sdist) from_source ;;
userland) in_userland "${2:?a name}" ;;
aarch64) on_aarch64 ;;
*) echo "usage: ci/wheel.sh [build [MACHINE...] | library [MACHINE] | test [ARGUMENT...] | sdist | userland NAME | aarch64]" >&2; exit 2 ;;
esac
