#!/usr/bin/env bash
# Runs the tests, continues after a failure, then lists all failures and one line of totals.
#
#   ci/test.sh        set-up, build, checks and the tests for every commit, about 25 minutes after the set-up
#   ci/test.sh long   the remaining tests, which take hours: slow tests, soak runs, miri, fuzzing, other processors,
#                     userlands, Numba releases, suites, aarch64
#
# With MINUTES=N, the first lane continues with steps of the long lane that fit into N minutes from its start. With CI
# set, a missing tool is a failure; elsewhere the test is skipped with a message.
#
# Up to five failed tests of a run are run again, alone. One that passes then is listed as unsteady.
#
# Not cargo nextest: it would not run pytest or the steps around it.
set -uo pipefail
# shellcheck source=ci/common.sh
. "$(dirname "$0")/common.sh"

lane=${1:-test}
log=target/test.log
# Nothing is compiled twice here, so incremental builds would only waste gigabytes of disk space.
[ -z "${CI:-}" ] || export CARGO_INCREMENTAL=0
export CARGO_TARGET_DIR=$PWD/target JITLISTEN_SKIPS=$PWD/target/test.skips JITLISTEN_SUPPORT=$PWD/target/test.support
export JITLISTEN_UNSTEADY=$PWD/target/test.unsteady
mkdir -p target
# Raise the PID limit, as distributions do: a process with a reused PID would find the perf map of a dead process.
[ -z "${CI:-}" ] || { echo 4194304 >/proc/sys/kernel/pid_max; } 2>/dev/null
# Other users can read the second directory (tests/src/paths.rs).
rm -rf target/scratch "/opt/jitlisten-scratch${PWD//\//-}" "$log" "$JITLISTEN_SKIPS" "$JITLISTEN_SUPPORT" "$JITLISTEN_UNSTEADY"
touch "$log" "$JITLISTEN_SKIPS" "$JITLISTEN_SUPPORT" "$JITLISTEN_UNSTEADY"
PATH=$PWD/target/tools:$PATH
passed=0 failed=0 skipped=0
failures=()

# --- steps ----------------------------------------------------------------------------------------------------------------

# ran NAME START STATUS: prints the result and duration of a step, and the time since the start of the lane.
ran() {
    local result=ok
    [ "$3" = 0 ] || result=FAILED
    times >target/test.times
    printf '=== %s: %s, %d s; so far %d s and %s processor seconds, %s of disk free\n' "$1" $result $((SECONDS - $2)) $SECONDS \
        "$(awk -F '[ms ]' 'NR == 2 { print int($1 * 60 + $2 + $4 * 60 + $5) }' target/test.times)" \
        "$(df -h --output=avail . | awk 'NR == 2 { print $1 }')"
}

# step NAME COMMAND...: runs a command that passes or fails as a unit.
step() {
    local name=$1 began=$SECONDS status=0 output tee
    shift
    printf '\n=== %s\n' "$name"
    # Not a pipeline: `ended` waits for a child of this shell.
    exec {output}> >(tee target/test.step)
    tee=$!
    "$@" >&"$output" 2>&1 {output}>&- || status=$?
    exec {output}>&-
    wait "$tee"
    ran "$name" "$began" $status
    if [ $status = 0 ]; then passed=$((passed + 1)); return; fi
    failed=$((failed + 1)) failures+=("$name")
    { printf -- '---- step %s\n' "$name"; tail -n 30 target/test.step | cut -c 1-300; } >>target/test.failed-steps
}

# tests NAME WORD...: runs `cargo test WORD...` and counts each test.
tests() {
    local name=$1 began=$SECONDS status=0 output=target/test.one
    shift
    printf '\n=== %s\n' "$name"
    cargo test --workspace --no-fail-fast "$@" 2>&1 | tee $output || status=$?
    if [ $status != 0 ] && run_again "$@"; then status=0; fi
    ran "$name" "$began" $status
    cat $output >>"$log"
    # A crash or a compile error prints no test results. A run without tests proves nothing.
    if [ $status != 0 ] && ! grep -q '^test result: FAILED' $output || ! grep -q '^test result: .* [1-9][0-9]* passed' $output; then
        failed=$((failed + 1)) failures+=("$name")
    fi
}

# run_again WORD...: runs the failed tests in $output again. If all pass, they count as passed there. A crash or a timeout
# is never run again: each program must have a result, and each failure a name.
run_again() {
    local names words=() word again=target/test.again
    mapfile -t names < <(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' $output)
    [ ${#names[@]} -gt 0 ] && [ ${#names[@]} -le 5 ] || return
    [ "$(grep -cE '^ *(Running|Doc-tests) ' $output)" = "$(grep -c '^test result:' $output)" ] || return
    [ "$(sed -nE 's/^test result:.* ([0-9]+) failed.*/\1/p' $output | paste -sd+ | bc)" = ${#names[@]} ] || return
    ! grep -qE "$(cat ci/never-again.txt)" $output || return
    for word in "$@"; do
        [ "$word" != -- ] || break
        words+=("$word")
    done
    cargo test --workspace --no-fail-fast "${words[@]}" -- --test-threads=1 --exact "${names[@]}" 2>&1 | tee $again || return
    [ "$(grep -c '^test .* ok$' $again)" -ge ${#names[@]} ] || return
    printf 'UNSTEADY %s\n' "${names[@]}" | tee -a "$JITLISTEN_UNSTEADY"
    sed -i -E 's/^(test .*) FAILED$/\1 unsteady/; s/^(test result:) FAILED(.*); [0-9]+ failed/\1 ok\2; 0 failed/' $output
    cat $again >>$output
}

# beside NAME COMMAND...: starts a step in the background while other steps leave a processor idle. `step NAME ended
# NAME` waits for it to end.
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

# drop PATH...: frees disk space in CI. Developers keep the files for their next run.
drop() { [ -z "${CI:-}" ] || rm -rf "$@"; }

# Counts the tests and steps that skipped something.
count_skips() { awk '/^SKIPPED/ { print $2 }' "$JITLISTEN_SKIPS" | sort -u | wc -l; }

# Sums up libtest's lines `test result: ok. 14 passed; 0 failed; 1 ignored; ...`. A partly skipped test counts as
# skipped.
count_tests() {
    local sums skips
    read -r -a sums < <(awk '/^test result:/ { for (i = 2; i <= NF; i++) { if ($i ~ /^passed/) p += $(i - 1);
        if ($i ~ /^failed/) f += $(i - 1); if ($i ~ /^ignored/) s += $(i - 1) } } END { print p + 0, f + 0, s + 0 }' "$log")
    skips=$(count_skips)
    passed=$((passed + sums[0] - skips)) failed=$((failed + sums[1])) skipped=$((skipped + sums[2] + skips))
    mapfile -t -O "${#failures[@]}" failures < <(awk '/^test .* FAILED$/ { print $2 }' "$log" | sort -u)
}

# Prints the ends of the failed steps' output, and the first and last lines of each failure message, for readers who see
# only the end of the log.
why() {
    cat target/test.failed-steps
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
    if [ -s "$JITLISTEN_UNSTEADY" ]; then
        printf '\nunsteady (failed, then passed alone; see the failures above):\n'
        sed 's/^UNSTEADY /    /' "$JITLISTEN_UNSTEADY"
    fi
    if [ ${#failures[@]} -gt 0 ]; then
        why
        printf '\nfailed:\n'
        printf '    %s\n' "${failures[@]}"
    fi
    printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
    [ "$failed" = 0 ]
}

# --- lanes ----------------------------------------------------------------------------------------------------------------

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
    # `alone` occupies only one processor, and coverage measures no time.
    beside coverage nice -n 19 ci/coverage.sh
    tests 'tests alone' --test alone -- --test-threads=1
    step coverage ended coverage
    step docs ci/docs.py target/wheel/venv/bin
    step lines ci/lines.sh
}

# Substrings of the names of tests that together take a third of the time of the concurrent tests; some take a minute
# each. Other tests cover the same code with another LLVM, Numba or tool.
slow=(
    host_safety_threads::a_minute image_lifetime::ten_thousand short_lived_functions::deleted
    integration_cpp::llvm_15 integration_cpp::llvm_16 integration_cpp::llvm_19 integration_rust:: integration_llvmlite::
    table::numba_0_56_4 table::numba_0_60_0 lli:: memray::compiled_functions_have_python_lines memray::native_frames
    self_loaded:: opened_by_c::rtld_now jitdump_faults:: python_perf_trampolines::
    jitdump_perf::python_and_numba_names
)

# --- the long lane ----------------------------------------------------------------------------------------------------------

# later MINUTES COMMAND NAME WORD...: runs a step of the long lane if at least that many minutes are left.
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
    # CI must have every integration, and only the two lanes together run them all.
    [ -z "${CI:-}" ] || [ "$lane" = long ] || step support ci/support.py --seen target/test.support
}

in_debian_13() {
    ci/systems.sh trixie || return
    # If the userland could not be created, ci/systems.sh has already reported the skip.
    [ ! -d target/userlands/trixie/opt ] || ci/wheel.sh userland trixie
}

miri() { if cargo +nightly miri --version >/dev/null 2>&1; then ci/miri.sh; else skip miri "no nightly toolchain with miri"; fi; }

# Builds each package from its own files, as a registry does. The target directory is new each time: cargo unpacks the
# packages below its own home, in a directory named after the target directory, and would reuse those of an older commit,
# which have the same version.
packages() {
    local directory status=0
    directory=$(mktemp -d target/package.XXXXXX) || return
    cargo package --allow-dirty --target-dir "$directory" -p jitlisten-files -p jitlisten-names -p jitlisten-unwinder \
        -p unwind-register -p jitlisten -p jitlisten-llvm || status=$?
    rm -rf "$directory"
    return "$status"
}

# Most useful steps first.
long_lane() {
    later 15 slow_tests 'slow tests'
    later 3 step fuzz ci/fuzz.sh
    later 4 step packages packages
    later 5 step processors ci/processors.sh
    later 9 step 'Debian 13' in_debian_13
    drop target/userlands
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
    later 240 step 'coverage of random functions' ci/coverage.sh random
    later 240 step 'lines of every Numba' ci/lines.sh all
}

rm -f target/test.skips.steps
: >target/test.failed-steps
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
    say "no such lane: $lane"
    exit 2
    ;;
esac
report
