#!/usr/bin/env bash
# Builds llvmlite 0.50.0 from PyPI's sources with jitlisten.patch against the system's LLVM 22. Installs it with Numba
# 0.68.1 in the virtual environment target/venv/numba-0.68.1-patched.
#
#   integrations/llvmlite/build.sh
#
# Takes a minute or two, or no time if no input has changed. Requires llvm-22-dev, a C++ compiler, Python 3.11 to 3.13
# and access to PyPI.
set -euo pipefail
# shellcheck source=ci/common.sh
. "$(dirname "$0")/../../ci/common.sh"
script=llvmlite

here=integrations/llvmlite
root=$PWD
work=$root/target/llvmlite
venvs=$root/target/venv
venv=$venvs/numba-0.68.1-patched
sdist=llvmlite-0.50.0.tar.gz
sha256=f2a2cd6ec9ffcc1b7147dea0d7a49efebf17a2b434e0c2844fe175999d571eb4

pip() {
    local python=$1
    shift
    retry "$python" -m pip --disable-pip-version-check -q "$@" >&2
}

base=$venvs/numba-0.68.1/bin/python
[ -x "$base" ] || fail "$base is missing: ci/setup.sh"

key=$(cat "$here/build.sh" "$here/jitlisten.patch" include/jitlisten.h include/jitlisten_llvm.hpp | sha256sum)
key="$key $("$base" --version)"
[ "$(cat "$venv/.key" 2>/dev/null)" = "$key" ] && { say "$venv is up to date"; exit; }

say "building $sdist with the patch"
rm -rf "$work" "$venv"
mkdir -p "$work"
"$base" -m venv "$work/tools"
tool=$work/tools/bin/python
pip "$tool" install setuptools==78.1.1 wheel==0.45.1 cmake==3.31.6
PATH=$work/tools/bin:$PATH
pip "$tool" download --no-deps --no-binary :all: --no-build-isolation -d "$work" llvmlite==0.50.0
echo "$sha256  $work/$sdist" | sha256sum --check --quiet
tar -xzf "$work/$sdist" -C "$work"
source=$work/${sdist%.tar.gz}
patch -d "$source" -p1 --quiet <"$here/jitlisten.patch"

export LLVMLITE_SHARED=ON LLVMLITE_LTO=OFF LLVMLITE_JITLISTEN=ON CXXFLAGS=-O1
export CMAKE_ARGS="-DLLVM_DIR=/usr/lib/llvm-22/lib/cmake/llvm -DJITLISTEN_INCLUDE_DIR=$root/include"
if ! pip "$tool" wheel --no-build-isolation --no-deps -w "$work" "$source" 2>"$work/log"; then
    tail -n 50 "$work/log" >&2
    exit 1
fi

"$base" -m venv "$venv"
pip "$venv/bin/python" install --only-binary :all: "${newest[@]}"
pip "$venv/bin/python" install --no-deps --no-index --force-reinstall "$work"/llvmlite-0.50.0-*.whl
printf '%s' "$key" >"$venv/.key"
say "made $venv"
