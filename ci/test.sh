#!/usr/bin/env bash
# Runs the tests, goes on after a failure, lists all failures at the end, and ends with one line that counts everything.
#
#   ci/test.sh        set-up, build, checks, and every test that one machine can run in some twenty-five minutes
#   ci/test.sh long   the rest, which takes hours: slow tests, soak runs, miri, fuzzing, other processors, userlands, Numba
#                     releases, suites, aarch64
#
# With MINUTES=N the first continues with those steps of the second that fit into N minutes from its start. With CI set,
# a missing tool is a failure; elsewhere it is a loud skip.
#
# cargo nextest would run the binaries of the workspace as well, but neither pytest nor the steps around them.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

lane=${1:-test}
log=target/test.log
# Nothing here is compiled twice, so nothing is kept for that: gigabytes.
[ -z "${CI:-}" ] || export CARGO_INCREMENTAL=0
export CARGO_TARGET_DIR=$PWD/target JITLISTEN_SKIPS=$PWD/target/test.skips JITLISTEN_SUPPORT=$PWD/target/test.support
mkdir -p target
# A number that comes again within a run meets the perf map of a process that has ended. Distributions set this, too.
[ -z "${CI:-}" ] || { echo 4194304 >/proc/sys/kernel/pid_max; } 2>/dev/null
# The second is where other users can go (tests/src/paths.rs).
rm -rf target/scratch "/opt/jitlisten-scratch${PWD//\//-}" "$log" "$JITLISTEN_SKIPS" "$JITLISTEN_SUPPORT"
touch "$log" "$JITLISTEN_SKIPS" "$JITLISTEN_SUPPORT"
PATH=$PWD/target/tools:$PATH
passed=0 failed=0 skipped=0
failures=()

# --- how --------------------------------------------------------------------------------------------------------------------

# ran NAME BEGAN STATUS: one line that says how a step ended, and what it and all before it took.
ran() {
    local said=ok
    [ "$3" = 0 ] || said=FAILED
    times >target/test.times
    printf '=== %s: %s, %d s; so far %d s and %s processor seconds, %s of disk free\n' "$1" $said $((SECONDS - $2)) $SECONDS \
        "$(awk -F '[ms ]' 'NR == 2 { print int($1 * 60 + $2 + $4 * 60 + $5) }' target/test.times)" \
        "$(df -h --output=avail . | awk 'NR == 2 { print $1 }')"
}

# step NAME COMMAND...: one thing that passes or fails as a whole.
step() {
    local name=$1 began=$SECONDS status=0
    shift
    printf '\n=== %s\n' "$name"
    "$@" || status=$?
    ran "$name" "$began" $status
    if [ $status = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)) failures+=("$name"); fi
}

# tests NAME WORD...: `cargo test WORD...`, whose tests are counted one by one.
tests() {
    local name=$1 began=$SECONDS status=0 said=target/test.one
    shift
    printf '\n=== %s\n' "$name"
    cargo test --workspace --no-fail-fast "$@" 2>&1 | tee $said || status=$?
    ran "$name" "$began" $status
    cat $said >>"$log"
    # A binary that does not compile or crashes has no line of its own, and one without tests proves nothing.
    if [ $status != 0 ] && ! grep -q '^test result: FAILED' $said || ! grep -q '^test result: .* [1-9][0-9]* passed' $said; then
        failed=$((failed + 1)) failures+=("$name")
    fi
}

# beside NAME COMMAND...: begins a step beside the next ones, where neither keeps two processors busy. `step NAME ended
# NAME` is its turn.
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

# drop PATH...: what no later step needs. A developer keeps it for the next run; a machine of CI may be small.
drop() { [ -z "${CI:-}" ] || rm -rf "$@"; }

# Tests, or steps, that left something out.
count_skips() { awk '/^SKIPPED/ { print $2 }' "$JITLISTEN_SKIPS" | sort -u | wc -l; }

# Sums libtest's lines `test result: ok. 14 passed; 0 failed; 1 ignored; ...`; a test that skipped anything counts as
# skipped.
count_tests() {
    local sums skips
    read -r -a sums < <(awk '/^test result:/ { for (i = 2; i <= NF; i++) { if ($i ~ /^passed/) p += $(i - 1);
        if ($i ~ /^failed/) f += $(i - 1); if ($i ~ /^ignored/) s += $(i - 1) } } END { print p + 0, f + 0, s + 0 }' "$log")
    skips=$(count_skips)
    passed=$((passed + sums[0] - skips)) failed=$((failed + sums[1])) skipped=$((skipped + sums[2] + skips))
    mapfile -t -O "${#failures[@]}" failures < <(awk '/^test .* FAILED$/ { print $2 }' "$log" | sort -u)
}

# Of each failed test the begin and the end of its message: whoever sees only the end of all this sees why.
why() {
    awk '/^---- .* stdout ----$/ { end(); on = 1 } /^failures:$/ { end() }
        on && NF { lines[count++] = substr($0, 1, 300) }
        function end(i) { for (i = 0; i < count; i++) if (i < 6 || i >= count - 6) print lines[i]; on = count = 0 }' "$log"
}

report() {
    count_tests
    if [ "$skipped" -gt 0 ]; then
        printf '\nskipped:\n'
        cat "$JITLISTEN_SKIPS" target/test.skips.steps 2>/dev/null | sed '/^$/d; s/^SKIPPED /    /' | sort -u
        sed -nE 's/^test (.*) \.\.\. ignored(, (.*))?$/    \1: \3/p' "$log" | sort -u
    fi
    if [ ${#failures[@]} -gt 0 ]; then
        why
        printf '\nfailed:\n'
        printf '    %s\n' "${failures[@]}"
    fi
    printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
    [ "$failed" = 0 ]
}

# --- what -------------------------------------------------------------------------------------------------------------------

test_lane() {
    step setup ci/setup.sh
    step build cargo build --release
    step check ci/check.sh
    step exports ci/exports.sh
    step tour ci/tour.sh
    step wheel ci/wheel.sh build "$(uname -m)"
    step release ci/release.py
    step wheel-tests ci/wheel.sh test
    tests 'unit tests'
    tests 'tests together' --test together -- --test-threads=4 "${slow[@]/#/--skip=}"
    # The tests that run alone use one processor; these two measure no time.
    beside coverage nice -n 19 ci/coverage.sh
    beside docs nice -n 19 ci/docs.py target/wheel/venv/bin
    tests 'tests alone' --test alone -- --test-threads=1
    step coverage ended coverage
    step docs ended docs
    step lines ci/lines.sh
}

# Of the tests that run four at a time: a third of their time. The same is tested elsewhere with another LLVM, Numba or
# tool, or it takes a minute. Parts of names.
slow=(
    host_safety_threads::a_minute image_lifetime::ten_thousand short_lived_functions::deleted
    integration_cpp::llvm_15 integration_cpp::llvm_16 integration_cpp::llvm_19 integration_rust:: integration_llvmlite::
    table::numba_0_56_4 table::numba_0_60_0 lli:: memray::compiled_functions_have_python_lines memray::native_frames
    self_loaded:: opened_by_c::rtld_now jitdump_faults:: python_perf_trampolines::
    jitdump_perf::python_and_numba_names
)

# --- the long lane ----------------------------------------------------------------------------------------------------------

# later MINUTES COMMAND NAME WORD...: a step, behind the other lane, only if that many minutes are left.
later() {
    local needed=$1
    shift
    if [ "$lane" = long ] || [ $((SECONDS / 60 + needed)) -le "$MINUTES" ]; then "$@"; else
        printf '\n=== %s: left to make test-long\n' "$2"
    fi
}

slow_tests() {
    if [ -n "${CI:-}" ] || [ -d /usr/lib/llvm-22/lib/cmake/llvm ]; then
        beside llvmlite integrations/llvmlite/build.sh
        step rust-producers ci/rust-producers.sh
        step llvmlite ended llvmlite
    else
        skip "llvmlite, rust-producers" "no llvm-22-dev"
    fi
    tests 'slow tests' --test together -- --test-threads=4 "${slow[@]}"
    step 'slow wheel tests' ci/wheel.sh test -m slow
    step 'coverage of an older Numba' ci/coverage.sh older
    # Only CI has to have every integration, and only both lanes together meet all.
    [ -z "${CI:-}" ] || [ "$lane" = long ] || step support ci/support.py --seen target/test.support
}

in_debian_13() {
    ci/systems.sh trixie || return
    # Without the rights to make one, that was a loud skip.
    [ ! -d target/userlands/trixie/opt ] || ci/wheel.sh userland trixie
}

miri() { if cargo +nightly miri --version >/dev/null 2>&1; then ci/miri.sh; else skip miri "no nightly toolchain with miri"; fi; }

# As a registry would have them: each package is built from what is in it.
packages() { cargo package --quiet --allow-dirty -p jitlisten-files -p jitlisten-names -p jitlisten-unwinder -p unwind-register -p jitlisten; }

# The most often useful first.
long_lane() {
    later 15 slow_tests 'slow tests'
    later 3 step fuzz ci/fuzz.sh
    later 4 step packages packages
    later 5 step processors ci/processors.sh
    later 9 step 'Debian 13' in_debian_13
    drop target/package target/userlands
    later 5 step miri miri
    drop target/miri target/fuzz-nightly target/fuzz
    later 8 step soak cargo test --workspace --test long -- --test-threads=1
    later 10 step 'lines of an older Numba' ci/lines.sh older
    later 10 step libraries ci/libraries.sh
    later 20 step 'advice for loops' ci/why.sh
    later 90 step mutations ci/mutations.py
    later 30 step 'other systems' ci/systems.sh sid bullseye
    later 20 step 'free-threaded Python' ci/free-threaded.sh
    later 30 step hosts ci/hosts.py
    later 60 step aarch64 ci/aarch64.sh
    later 90 step suites ci/suites.sh
    later 90 step 'coverage of every Numba' ci/coverage.sh all
    later 240 step 'lines of every Numba' ci/lines.sh all
}

rm -f target/test.skips.steps
case $lane in
test)
    test_lane
    [ -z "${MINUTES:-}" ] || long_lane
    ;;
long)
    step setup ci/setup.sh
    step build cargo build --release
    step wheel ci/wheel.sh build
    long_lane
    ;;
*)
    echo "test: no such lane: $lane" >&2
    exit 2
    ;;
esac
report
