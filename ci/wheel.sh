#!/usr/bin/env bash
# Builds the wheels and the source distribution into target/wheels, and says what is in them. zig links for an old glibc.
#
#   ci/wheel.sh [build [TARGET...]]   by default x86_64, and aarch64 where its standard library can be had
#   ci/wheel.sh test                  installs the wheel of this machine into a fresh environment and runs python/tests/wheel
#   ci/wheel.sh userland NAME         runs it in a userland that ci/userland.sh has made: bullseye (glibc 2.31), sid
set -euo pipefail
cd "$(dirname "$0")/.."

glibc=2.28
# Bytes; a wheel is downloaded by people who only want to look.
most=$((6 << 20))
tools=$PWD/target/wheel/tools
venv=$PWD/target/wheel/venv
wheels=target/wheels
PATH=$tools/bin:$PATH

fail() { echo "wheel: $*" >&2; exit 1; }

version() { sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1; }
of_this_machine() { find "$wheels" -name "jitlisten-$(version)-*_$(uname -m).whl" | head -n 1; }

has_target() { rustup target list --installed 2>/dev/null | grep -qx "$1" || rustup target add "$1" >/dev/null 2>&1; }

# build MACHINE
build() {
    local target=$1-unknown-linux-gnu out=$PWD/target/wheel/cargo stub=$PWD/target/wheel/stub-$1
    ci/libgcc-stub.sh "$stub" python-zig cc -target "$1-linux-gnu.$glibc"
    JITLISTEN_LIBGCC_S=$stub/libgcc_s.so.1 cargo zigbuild --quiet --profile wheel --target "$target.$glibc" \
        --target-dir "$out" -p jitlisten-capi
    JITLISTEN_LIBRARY=$out/$target/wheel/libjitlisten.so
    export JITLISTEN_LIBRARY
    check_symbols "$JITLISTEN_LIBRARY"
    # The backend puts the library into the package; maturin is called by itself because only so it takes --zig.
    PYTHONPATH=python/build python3 -B -c 'import backend; backend.prepare()'
    maturin build --quiet --zig --target "$target" --compatibility "manylinux_${glibc/./_}" --target-dir "$out" --out "$wheels"
    check_symbols "$out/$target/wheel/jitlisten"
}

# Both files may ask for no symbol that is newer than the tag says.
check_symbols() {
    local newest
    newest=$(readelf -V "$1" | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1)
    [ "$(printf '%s\n' "${newest#GLIBC_}" $glibc | sort -V | tail -n 1)" = $glibc ] || fail "$1 needs $newest"
    ! readelf -d "$1" | grep -q 'NEEDED.*LLVM' || fail "$1 must not link LLVM"
    echo "wheel: $1 needs $newest"
}

check_wheel() {
    local size names
    size=$(stat -c %s "$1")
    [ "$size" -le $most ] || fail "$1 has $size bytes, more than $most"
    names=$(python3 -m zipfile -l "$1")
    for part in jitlisten/libjitlisten.so jitlisten/py.typed jitlisten/include/jitlisten.h jitlisten/_site/sitecustomize.py \
        scripts/jitlisten; do
        grep -q "$part" <<<"$names" || fail "$1 lacks $part"
    done
    ! unzip -p "$1" '*/METADATA' 2>/dev/null | grep -q '^Requires-Dist' || fail "$1 has dependencies"
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

# A fresh environment with the wheel, what its tests need, and nothing of the source tree.
make_venv() {
    local numba=target/venv/numba-0.68.1/bin/python
    [ -x $numba ] || fail "no $numba: see ci/setup.sh"
    rm -rf "$venv"
    "$(realpath $numba)" -m venv "$venv"
    # The packages of the pinned environment, by path: they need not be downloaded again.
    "$numba" -c 'import site; print(site.getsitepackages()[0])' >"$("$venv/bin/python" -c 'import site
print(site.getsitepackages()[0])')/pinned.pth"
    # A kernel for the magics, in the same way; without it those tests are skipped.
    local notebook=target/wheel/notebook/bin/python
    [ ! -x $notebook ] || $notebook -c 'import site; print(site.getsitepackages()[0])' \
        >"$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')/notebook.pth"
    "$venv/bin/pip" install -q --disable-pip-version-check --no-index "$(of_this_machine)"
}

run_tests() {
    [ -n "$(of_this_machine)" ] || fail "no wheel: ci/wheel.sh build"
    make_venv
    # Types as a user's type checker sees them.
    "$tools/bin/mypy" --python-executable "$venv/bin/python" --strict -p jitlisten
    JITLISTEN_TEST_PYTHON=$venv/bin/python PYTHONDONTWRITEBYTECODE=1 \
        "$tools/bin/pytest" -q -p no:cacheprovider "${@:-python/tests/wheel}"
}

# What an old or new system has to show: the command starts, finds its library, and Numba's code has names.
in_userland() {
    local unpacked=$PWD/target/wheel/unpacked python=/opt/venv/numba-0.68.1/bin/python
    rm -rf "$unpacked"
    python3 -m zipfile -e "$(of_this_machine)" "$unpacked"
    # As `pip install --target` lays it out.
    mkdir -p "$unpacked/bin"
    mv "$unpacked"/jitlisten-*.data/scripts/jitlisten "$unpacked/bin/"
    chmod 755 "$unpacked/bin/jitlisten"
    # shellcheck disable=SC2016 # the words are those of the inner shell
    ci/in-userland.sh "$1" sh -euc '
        "$1/bin/jitlisten" --version
        ldd --version | head -n 1
        NUMBA_CACHE_DIR=/tmp/cache "$1/bin/jitlisten" run -- "$2" python/tests/wheel/programs/kernel.py once >/tmp/said
        pid=$(sed -n "s/^pid //p" /tmp/said)
        grep -F "__main__.burn(int64)" "/tmp/perf-$pid.map" | head -n 1
        PYTHONPATH=$1 "$2" -B -c "import jitlisten, sys; jitlisten.enable(); print(sys.version.split()[0], jitlisten.status().sinks)"
    ' sh "$unpacked" "$python"
}

case ${1:-build} in
build) shift || true; build_all "$@" ;;
test) shift; run_tests "$@" ;;
userland) in_userland "${2:?a name}" ;;
*) echo "usage: ci/wheel.sh [build [MACHINE...] | test | userland NAME]" >&2; exit 2 ;;
esac
