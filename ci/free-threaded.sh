#!/usr/bin/env bash
# Records Python functions on a free-threaded CPython. Neither Debian nor PyPI packages it: it is built from Debian's
# source package under target/free-threaded.
#
#   [LIBRARY=target/release/libjitlisten.so] ci/free-threaded.sh
#
# Requires a C compiler and access to Debian's archive. The build takes three minutes on two processors.
set -euo pipefail
# shellcheck source=ci/common.sh
. "$(dirname "$0")/common.sh"

directory=$PWD/target/free-threaded
python=$directory/3.13t/bin/python3.13t
library=$(realpath "${LIBRARY:-target/release/libjitlisten.so}")
export CARGO_TARGET_DIR=$PWD/target

build() {
    local apt=$directory/apt
    rm -rf "$directory"
    mkdir -p "$apt/lists/partial" "$apt/cache" "$directory/source"
    echo "deb-src http://deb.debian.org/debian trixie main" >"$apt/sources.list"
    (
        cd "$directory"
        options=(-o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
            -o "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt/cache" -o Acquire::Retries=5)
        apt-get "${options[@]}" update
        apt-get "${options[@]}" source --download-only python3.13
        tar -xf python3.13_*.orig.tar.xz -C source --strip-components=1
        cd source
        ./configure --disable-gil --without-ensurepip --prefix="$directory/3.13t" OPT='-O2 -g1 -DNDEBUG'
        make -j2 && make altinstall
    ) >"$PWD/target/free-threaded.log" 2>&1
    rm -rf "$directory/source"
}

[ -x "$python" ] || build || { tail -n 20 target/free-threaded.log >&2; exit 1; }
[ "$("$python" -c 'import sys; print(sys._is_gil_enabled())')" = False ]

# Directory where the tests look for interpreters.
venvs=$directory/venvs
mkdir -p "$venvs/numba-0.68.1/bin"
ln -sfn "$python" "$venvs/numba-0.68.1/bin/python"
for other in numba-0.56.4 numba-0.68.1-python-3.12 numba-0.68.1-python-3.13; do
    echo 'only one free-threaded Python is built' >"$venvs/$other.skipped"
done
# A free-threaded Python never frees function names, recorded or not.
JITLISTEN_VENVS=$venvs JITLISTEN_LIBRARY=$library cargo test --workspace --test alone -- --test-threads=1 sampler_python:: \
    --skip functions_that_live_for_one_call
