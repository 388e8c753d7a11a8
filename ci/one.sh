#!/usr/bin/env bash
# One test, and before it whatever it needs: packages, virtual environments, the library, programs that other scripts build.
#
#   ci/one.sh NAME    a file in tests/tests (`table`), a test (`py_spy_dumps_the_chain`) or both (`table::numba_0_68_1::perf`)
set -euo pipefail
cd "$(dirname "$0")/.."

name=${1:?the name of a test, or of a file with tests}
export CARGO_TARGET_DIR=$PWD/target
PATH=$PWD/target/tools:$PATH

# The files that have it: by their own name, else by that of a function (or a row of a table) in them.
file=${name%%::*}
mapfile -t files < <(find . -path ./target -prune -o -path '*/tests/*' -name "$file.rs" -print)
if [ ${#files[@]} -gt 0 ]; then
    words=${name#"$file"}
    words=${words#::}
else
    words=$name
    mapfile -t files < <(grep -rlE "fn ${name##*::} *\(|^ *${name##*::}: " --include='*.rs' \
        {jitlisten,names,unwind-register,shim,sampler,capi,report,cli,tests}/src {jitlisten,names,unwind-register,report,tests}/tests)
fi
[ ${#files[@]} -gt 0 ] || { echo "one: there is no test $name" >&2; exit 2; }

ci/setup.sh
cargo build --release --quiet
status=0
for file in "${files[@]}"; do
    file=${file#./}
    case $file in
    */integration_llvmlite.rs) integrations/llvmlite/build.sh ;;
    */integration_rust.rs) ci/rust-producers.sh ;;
    esac
    package=$(sed -n 's/^name = "\(.*\)"/\1/p' "${file%%/*}/Cargo.toml" | head -n 1)
    case $file in
    */src/*) which=(--lib) ;;
    *) which=(--test "$(basename "$file" .rs)") ;;
    esac
    # shellcheck disable=SC2086 # none, where the whole file is meant
    cargo test -p "$package" "${which[@]}" -- $words || status=$?
done
exit $status
