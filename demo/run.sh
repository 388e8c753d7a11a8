#!/usr/bin/env bash
# `make demo`: a Numba program under perf, with and without jitlisten. Installs missing requirements first.
#
# If the kernel or a container forbids perf, gdb shows the same stacks. It starts the program itself, so it works even
# where attaching is forbidden.
set -euo pipefail
# shellcheck source=ci/common.sh
. "$(dirname "$0")/../ci/common.sh"
script=demo

out=target/demo
python=target/venv/numba-0.68.1/bin/python
library=$PWD/target/release/libjitlisten.so
PATH=$PWD/target/tools:$PATH
# Use a private cache, because code cached by an earlier run would show that run's stacks. Every wheel contains
# workqueue.
export NUMBA_CACHE_DIR=$out/cache NUMBA_THREADING_LAYER=workqueue OPENBLAS_NUM_THREADS=1

heading() { printf '\n\033[1m%s\033[0m\n' "$*"; }

prepare() {
    ci/setup.sh demo
    if [ ! -x $python ]; then
        fail "there is no Numba to show: see what ci/setup.sh says above"
    fi
    CARGO_TARGET_DIR=target cargo build --release --quiet
    mkdir -p $out
}

perf_is_allowed() { perf record -q -e cpu-clock -g -o $out/trial.data -- true >$out/trial.log 2>&1; }

# record NAME FRACTION [VARIABLE=VALUE]...: samples cpu-clock, because virtual machines often lack hardware counters.
record() {
    local name=$1 fraction=$2
    shift 2
    perf record -q -e cpu-clock -F 499 -g -B -N -o "$out/$name.data" -- env "$@" $python demo/program.py "$fraction" |
        tee "$out/$name.txt"
}

# table DATA ROWS: prints functions by self time, as perf's table without its header and padding.
table() {
    perf report -i "$1" --stdio --no-children -g none --percent-limit 0.5 --sort dso,symbol 2>/dev/null |
        sed -E '/^#/d; /^ *$/d; s/\[JIT\] tid [0-9]+/JIT/; s/ +- +- *$//; s/ +/ /g; s/^ /  /' | cut -c 1-110 | head -n "$2"
}

# summary DATA: prints the share of samples in JIT code that have a name, and the share whose stack reaches Numba's C
# code (the dispatcher, or the thread pool of prange).
summary() {
    perf script -i "$1" --no-inline -F ip,sym,dso 2>/dev/null | awk '
        function end_sample() { if (jit) { total++; names += named; stacks += whole } leaf = 1; jit = named = whole = 0 }
        BEGIN { leaf = 1 }
        /^ *$/ { end_sample(); next }
        leaf { jit = /\(\/tmp\/perf-[0-9]+\.map\)$/; named = !/ \[unknown\] /; leaf = 0; next }
        /\/(_dispatcher|workqueue)\./ { whole = 1 }
        END { end_sample(); if (total) printf "  %d samples in JIT code: %.1f %% have a name, %.1f %% a stack up to the C code\n",
            total, 100 * names / total, 100 * stacks / total }'
}

# stack_through DATA FUNCTION: prints the most frequent stack that contains the function, leaf first.
stack_through() {
    perf script -i "$1" --no-inline -F ip,sym,dso 2>/dev/null | awk -v function_name="$2" '
        function end_sample() { if (index(stack, function_name)) count[stack]++; stack = "" }
        /^ *$/ { end_sample(); next }
        / \[unknown\] / { next }
        {
            object = $NF; sub(/.*\//, "", object); sub(/^\(/, "", object); sub(/\)$/, "", object)
            sub(/^[ \t]*[0-9a-f]+ /, ""); sub(/ \([^ ]*\)$/, "")
            if (length($0) > 80) $0 = substr($0, 1, 77) "..."
            stack = stack sprintf("    %-80s  %s\n", $0, object)
        }
        END { end_sample(); for (s in count) if (count[s] > max) { max = count[s]; best = s } printf "%s", best }'
}

demo_with_perf() {
    heading "Without jitlisten (a third of the work)"
    record before 0.3
    heading "With jitlisten: LD_PRELOAD=libjitlisten.so"
    record after 1.0 LD_PRELOAD="$library"

    local pid map
    pid=$(perf script -i $out/after.data -F pid 2>/dev/null | awk '{ count[$1]++ } END { for (p in count)
        if (count[p] > max) { max = count[p]; best = p } print best }')
    map=/tmp/perf-$pid.map
    heading "perf report without jitlisten"
    summary $out/before.data
    table $out/before.data 8
    heading "perf report with jitlisten"
    summary $out/after.data
    table $out/after.data 14
    if [ ! -s "$map" ]; then
        fail "$map was not written: nothing has a name"
    fi
    cp "$map" $out/perf.map

    heading "Who called? Whole stacks, leaf first, up to the interpreter's C code"
    stack_through $out/after.data advance
    echo
    stack_through $out/after.data quicksort
    echo
    stack_through $out/after.data prange

    heading "Files"
    echo "  $PWD/$out/before.data, $PWD/$out/after.data   what perf recorded"
    echo "  $map   the names; perf looks for them there (a copy: $PWD/$out/perf.map)"
    echo
    echo "  perf report -i $out/after.data --no-children      # browse it"
    print_wheel_commands

    heading "Which line is slow? jitlisten lines -- python demo/program.py"
    target/release/jitlisten lines -o $out/lines.data -- $python demo/program.py 0.5 | head -n 90
}

print_wheel_commands() {
    heading "The same with the wheel, which needs neither this repository nor a compiler"
    echo "  pip install jitlisten        # or: make wheel; pip install target/wheels/jitlisten-*-manylinux_*_$(uname -m).whl"
    echo "  jitlisten run -- perf record -g python program.py"
    echo "  jitlisten doctor -- python program.py      # what you will see, and what to do about the rest"
}

# Stops the program several times while it computes, and prints each stack.
demo_with_gdb() {
    say "perf may not be used here:"
    sed 's/^/    /' $out/trial.log >&2
    say "gdb shows the same stacks instead"
    command -v gdb >/dev/null || ci/setup.sh gdb
    if ! command -v gdb >/dev/null; then
        fail "and there is no gdb"
    fi
    heading "With jitlisten: LD_PRELOAD=libjitlisten.so, stopped by gdb"
    gdb -nx -batch -ex "set environment LD_PRELOAD $library" -x demo/stops.gdb --args $python demo/stopping.py \
        >$out/gdb.log 2>&1 || true
    if ! grep -q '^#0' $out/gdb.log; then
        say "gdb may not look either:"
        sed 's/^/    /' $out/gdb.log >&2
        exit 1
    fi
    grep -E '^(===|#[0-9])' $out/gdb.log | sed -E 's/^#([0-9]+) +(0x[0-9a-f]+ in )?/    /; s/\[abi:[^]]*\]//g' |
        cut -c 1-110
    heading "Files"
    echo "  $PWD/$out/gdb.log   what gdb said"
    print_wheel_commands
}

prepare
if perf_is_allowed; then demo_with_perf; else demo_with_gdb; fi
