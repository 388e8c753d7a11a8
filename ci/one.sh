#!/usr/bin/env bash
# Runs the tests whose name contains a word, after installing and building their prerequisites: packages, virtual
# environments, the library, the wheel, programs of other scripts.
#
#   ci/one.sh NAME    a file with tests (`table`, `test_record`), a part of a test's name (`py_spy`), or both (`table::perf`)
#   ONLY_SAY=yes ci/one.sh NAME    prints the commands without running them
set -euo pipefail
# shellcheck source=ci/common.sh
. "$(dirname "$0")/common.sh"

name=${1:?the name of a test, or of a file with tests}
crates=(jitlisten llvm names unwind-register shim sampler capi report cli tests)
export CARGO_TARGET_DIR=$PWD/target
PATH=$PWD/target/tools:$PATH

# --- selection ------------------------------------------------------------------------------------------------------------

# Prints the Rust files that contain a test of this name. Tests are functions after `#[test]`. In files where macros
# (`row`, `rows`) define tests, all functions and row names are searched.
rust_files_with() {
    local all
    mapfile -t all < <(find "${crates[@]/%//src}" {jitlisten,names,unwind-register,report,tests}/tests -name '*.rs' ! -name main.rs)
    awk -v word="$1" "$below_test" "${all[@]}"
    grep -lE 'macro_rules! rows?' "${all[@]}" | xargs grep -lE "fn [a-z0-9_]*$1|^ *[a-z0-9_]*$1[a-z0-9_]*: " || true
}

# shellcheck disable=SC2016 # awk expands these
below_test='FNR == 1 { pending = 0 }
    /#\[test\]/ { pending = 1 }
    match($0, /fn [a-z0-9_]+/) {
        if (pending && index(substr($0, RSTART + 3, RLENGTH - 3), word)) print FILENAME
        pending = 0
    }'

python_files_with() { grep -rlE "def test_\w*${1#test_}" --include='test_*.py' python/tests || true; }

# Selects the files that belong to a module or declare it.
with_module() {
    local path
    while read -r path; do
        if [[ $path == *"$1"* ]] || grep -q "$1" "$path"; then echo "$path"; fi
    done
}

# Look for files first, then for tests. `words` selects tests in those files.
file=${name%%::*}
mapfile -t files < <(find "${crates[@]}" python -path '*/tests/*' \( -name "$file.rs" -o -name "$file.py" \) -print | sort)
if [ ${#files[@]} -gt 0 ]; then
    words=${name#"$file"}
    words=${words#::}
else
    words=$name
    mapfile -t files < <({ rust_files_with "${name##*::}"; python_files_with "${name##*::}"; } | sort -u | with_module "${name%%::*}")
fi
[ ${#files[@]} -gt 0 ] || { say "there is no test $name"; exit 2; }

# --- commands -------------------------------------------------------------------------------------------------------------

# Files in tests/tests are modules of a few binaries, and libtest cannot filter by module and test name together.
module_of() {
    local only="--workspace --test $1 --"
    if [ -z "$words" ]; then echo "$only $2::"; else
        echo "$only --exact \$(cargo test -q $only --list | sed -n 's/: test\$//p' | grep '^$2::.*$words' || echo none)"
    fi
}

# Prints the `cargo test` arguments for one Rust file.
command_of() {
    local directory=${1%%/*} package
    package=$(sed -n 's/^name = "\(.*\)"/\1/p' "$directory/Cargo.toml" | head -n 1)
    case $1 in
    */src/*) if [ -f "$directory/src/lib.rs" ]; then echo "-p $package --lib -- $words"; else echo "-p $package --bins -- $words"; fi ;;
    tests/tests/*) module_of "$(basename "$(dirname "$1")")" "$(basename "$1" .rs)" ;;
    *) echo "-p $package --test $(basename "$1" .rs) -- $words" ;;
    esac
}

# The script that runs all tests of this kind also creates their environment.
lines_test() {
    local venv=target/venv-lines/0.68.1/bin
    if [ -x $venv/python ]; then
        echo "PATH=$PWD/$venv:\$PATH $venv/python -m pytest -q -p no:cacheprovider $*"
    else
        echo "ci/lines.sh"
    fi
}

before=(ci/setup.sh 'cargo build --release --quiet') tests=() wheel=() lines=()
for file in "${files[@]}"; do
    case $file in
    python/tests/wheel/*) wheel+=("$file") ;;
    python/*) lines+=("$file") ;;
    */integration_llvmlite.rs) before+=(integrations/llvmlite/build.sh) ;;&
    */integration_rust.rs) before+=(ci/rust-producers.sh) ;;&
    *.rs) tests+=("cargo test $(command_of "$file")") ;;
    esac
done
# Several of the files may contain unit tests of the same crate.
mapfile -t tests < <(printf '%s\n' "${tests[@]}" | awk 'NF && !seen[$0]++')
only=${words:+ -k ${words##*::}}
if [ ${#wheel[@]} -gt 0 ]; then
    before+=("ci/wheel.sh build $(uname -m)")
    tests+=("ci/wheel.sh test ${wheel[*]}$only")
fi
if [ ${#lines[@]} -gt 0 ]; then tests+=("$(lines_test "${lines[*]}$only")"); fi

run() {
    say "$1"
    [ -n "${ONLY_SAY:-}" ] || bash -euc "$1"
}

for command in "${before[@]}"; do run "$command"; done
status=0
for command in "${tests[@]}"; do run "$command" || status=$?; done
exit $status
