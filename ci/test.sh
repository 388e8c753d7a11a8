#!/usr/bin/env bash
# Everything CI runs, in one command: set-up, release build, checks, every test, miri and fuzz targets where they can be
# built. Goes on after a failure, lists all of them at the end, and ends with one line that counts everything.
#
# With CI set, what is missing is a failure; elsewhere it is a loud skip.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

log=target/test.log
# Nothing here is compiled twice, so nothing is kept for that: gigabytes.
[ -z "${CI:-}" ] || export CARGO_INCREMENTAL=0
export CARGO_TARGET_DIR=$PWD/target JITLISTEN_SKIPS=$PWD/target/test.skips JITLISTEN_SUPPORT=$PWD/target/test.support
mkdir -p target
rm -rf target/scratch /opt/jitlisten-scratch "$log" "$JITLISTEN_SKIPS" "$JITLISTEN_SUPPORT"
touch "$log" "$JITLISTEN_SKIPS" "$JITLISTEN_SUPPORT"
PATH=$PWD/target/tools:$PATH
passed=0 failed=0 skipped=0
failures=()

# step NAME COMMAND...: one thing that passes or fails as a whole.
step() {
    local name=$1 began=$SECONDS
    shift
    printf '\n=== %s\n' "$name"
    if "$@"; then
        passed=$((passed + 1))
        printf '=== %s: ok, %d s, %s\n' "$name" $((SECONDS - began)) "$(free_disk)"
    else
        failed=$((failed + 1))
        failures+=("$name")
        printf '=== %s: FAILED, %d s, %s\n' "$name" $((SECONDS - began)) "$(free_disk)"
    fi
}

free_disk() { df -h --output=avail . | awk 'NR == 2 { print $1 " of disk free" }'; }

# drop PATH...: what no later step needs. A developer keeps it for the next run; a machine of CI may be small.
drop() { [ -z "${CI:-}" ] || rm -rf "$@"; }

# beside NAME COMMAND...: begins a step beside the next ones, where neither keeps two processors busy. `step NAME ended NAME` is its turn.
declare -A beside=()
beside() {
    local name=$1
    shift
    "$@" >"target/test.beside.$name" 2>&1 &
    beside[$name]=$!
}
ended() {
    local status=0
    wait "${beside[$1]}" || status=$?
    cat "target/test.beside.$1"
    return "$status"
}

skip() {
    skipped=$((skipped + 1))
    printf '\nSKIPPED %s: %s\n' "$1" "$2" | tee -a target/test.skips.steps
}

cargo_tests() { cargo test --workspace --no-fail-fast 2>&1 | tee "$log"; }

# Profilers sample, debuggers wait, machines are shared: a test that failed is run once more, alone, and counts as passed if it
# passes then, which is said at the end. A binary that crashed or did not compile gets no second chance, nor do many failures.
unsteady=()
second_chance() {
    local name
    [ "$(grep -c '^test result: FAILED' "$log")" = "$(grep -c '^    `-p ' "$log")" ] || return 1
    mapfile -t unsteady < <(failed_tests)
    [ ${#unsteady[@]} -le 4 ] || return 1
    for name in "${unsteady[@]}"; do
        printf '\n=== once more, alone: %s\n' "$name"
        cargo test --workspace -- --exact "$name" 2>&1 | tee target/test.again
        [ "${PIPESTATUS[0]}" = 0 ] && grep -q "^test $name \.\.\. ok$" target/test.again || return 1
    done
}

failed_tests() { awk '/^test .* FAILED$/ { print $2 }' "$log" | sort -u; }

# Tests, or steps, that left something out.
count_skips() { awk '/^SKIPPED/ { print $2 }' "$JITLISTEN_SKIPS" | sort -u | wc -l; }

# Sums libtest's lines `test result: ok. 14 passed; 0 failed; 1 ignored; ...`; a test that skipped anything counts as skipped.
count_tests() {
    local sums
    read -r -a sums < <(awk '/^test result:/ { for (i = 2; i <= NF; i++) { if ($i ~ /^passed/) p += $(i - 1);
        if ($i ~ /^failed/) f += $(i - 1); if ($i ~ /^ignored/) s += $(i - 1) } } END { print p + 0, f + 0, s + 0 }' "$log")
    skips=$(count_skips)
    skipped=$((skipped + sums[2] + skips))
    if [ -n "$mended" ]; then
        passed=$((passed + sums[0] + sums[1] - skips))
    else
        passed=$((passed + sums[0] - skips))
        failed=$((failed + sums[1]))
        mapfile -t -O "${#failures[@]}" failures < <(failed_tests)
    fi
}

rm -f target/test.skips.steps
step setup ci/setup.sh
# Mostly waits for an archive.
beside userland ci/userland.sh trixie
step build cargo build --release
step check ci/check.sh
step exports ci/exports.sh
# As a registry would have them: each package is built from what is in it.
step packages cargo package --quiet --allow-dirty -p jitlisten-names -p unwind-register -p jitlisten
drop target/package
step tour ci/tour.sh
step wheel ci/wheel.sh build "$(uname -m)"
step wheel-tests ci/wheel.sh test
step docs ci/docs.py target/wheel/venv/bin
if [ -n "${CI:-}" ] || [ -d /usr/lib/llvm-22/lib/cmake/llvm ]; then
    beside llvmlite integrations/llvmlite/build.sh
    step rust-producers ci/rust-producers.sh
    step llvmlite ended llvmlite
else
    skip "llvmlite, rust-producers" "no llvm-22-dev"
fi

began=$SECONDS
printf '\n=== tests\n'
mended=
if cargo_tests; then
    printf '=== tests: ok, %d s\n' $((SECONDS - began))
elif second_chance; then
    mended=yes
    printf '=== tests: ok, some at the second time, %d s\n' $((SECONDS - began))
else
    printf '=== tests: FAILED, %d s\n' $((SECONDS - began))
    # A test binary that does not compile or crashes has no line of its own.
    grep -q '^test result: FAILED' "$log" || { failed=$((failed + 1)); failures+=("cargo test"); }
fi
count_tests

# Other userlands and other processors, with tests that have just been built.
# What could not be made is tried once more, and said there.
ended userland
step 'Debian 13' ci/systems.sh trixie
if [ -d target/userlands/trixie/opt ]; then step 'wheel in Debian 13' ci/wheel.sh userland trixie; fi
drop target/userlands "target/$(uname -m)-unknown-linux-gnu"
beside processors ci/processors.sh
step lines ci/lines.sh
step processors ended processors
drop target/debug target/scratch

if cargo +nightly miri --version >/dev/null 2>&1; then step miri ci/miri.sh; else skip miri "no nightly toolchain with miri"; fi
drop target/miri
step fuzz ci/fuzz.sh
drop target/fuzz-nightly target/fuzz
# Only CI has to have every integration.
[ -z "${CI:-}" ] || step support-table ci/support-table.sh target/test.support

# Those of the steps after the tests: a userland, a processor.
skipped=$((skipped + $(count_skips) - skips))
if [ -s "$JITLISTEN_SKIPS" ] || [ "$skipped" -gt 0 ]; then
    printf '\nskipped:\n'
    cat "$JITLISTEN_SKIPS" target/test.skips.steps 2>/dev/null | sed '/^$/d; s/^SKIPPED /    /' | sort -u
    sed -nE 's/^test (.*) \.\.\. ignored(, (.*))?$/    \1: \3/p' "$log" | sort -u
fi
if [ -n "$mended" ]; then
    printf '\npassed only when run alone:\n'
    printf '    %s\n' "${unsteady[@]}"
fi
if [ ${#failures[@]} -gt 0 ]; then
    printf '\nfailed:\n'
    printf '    %s\n' "${failures[@]}"
fi
printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" = 0 ]
