#!/usr/bin/env python3
"""The same run, recorded by perf and by `jitlisten record` at once: are the shares of functions and lines the same?

    benches/agreement.py JITLISTEN [SECONDS, default 120] [truth]

With the Python of target/venv/numba-0.68.1, and perf. The program has four loops of known weight, in rounds of random
length on two threads, one loop of them inlined, one that calls `exp`; with `truth`, it is python/tests/lines/truth.py,
whose five programs have loops of 3:1 (plain, inlined, from two files, with calls of `exp`, in a `prange`), all in
rounds of random length. Both recordings are read by `jitlisten lines --json`. Says for each function and line its share
in both, weighted by the samples' periods, their difference, and the sigma that a difference of two independent samples
has; ends with status 1 where a function's or line's shares differ by more than half a point and three sigma, or where a
sum is not exact.

SECONDS are of processor time. A sigma of 0.15 points wants about 130,000 samples: 260 seconds on two cores at 250 Hz,
which is as often as a kernel with 250 ticks a second lets a timer of processor time fire. A thread that runs for less
than a tick at a time has fewer samples, of several periods each, so its samples must not be counted; they weigh more in
the sigma, too. perf copies stacks, because its walk by frame pointers loses the callers of `exp`, which has none: 250
MB for a minute. It samples the kernel's part, too, where it may: our timers measure it, and a thread that waits in a
loop of system calls is there for most of its time.
"""

import json
import math
import os
import subprocess
import sys
import tempfile

PROGRAM = """
import math, sys, time
import numpy as np
from numba import njit, prange

@njit(inline="always")
def inlined(x, n):
    for _ in range(n):
        x = x * 0.999 + 1.0 / (x * x + 1.0)
    return x

@njit
def outer(x, n):
    for _ in range(n):
        x = math.exp(-x) + 0.1
    return x

@njit(parallel=True)
def rounds(out, seed):
    for i in prange(out.size):
        x, state = out[i], seed * 7919 + i
        for _ in range(400):
            state = (state * 1103515245 + 12345) % 2147483648
            n = 40 + state % 97
            x = inlined(x, 4 * n)
            x = outer(x, n)
            for _ in range(n):
                x = math.sqrt(x * x + 1.0) % 3.0
        out[i] = x
    return out.sum()

rounds(np.arange(64.0), 1)
until, seed = time.process_time() + float(sys.argv[1]), 2
while time.process_time() < until:
    rounds(np.arange(64.0), seed)
    seed += 1
"""
HZ = 250


def read(jitlisten, file, truth):
    """How many samples the kernel of the `prange` has, with what it calls, and shares of functions and lines in percent
    of its time; of the truth, those of all compiled code."""
    text = subprocess.run([jitlisten, "lines", "--json", "-", file], capture_output=True, text=True, check=True).stdout
    found = json.loads(text)
    lines = {f"{file['path']}:{line['line']}": line for file in found["files"] for line in file["lines"]}
    own = sum(line["self"] for line in lines.values())
    outside = sum(row["samples"] for row in found["outside"])
    assert len(lines) == sum(len(file["lines"]) for file in found["files"])
    sums = (own + found["without_line"], found["compiled"]), (found["compiled"] + outside, found["samples"]), (
        sum(row["self"] for row in found["functions"]), found["samples"]), (
        sum(row["samples"] for row in found["threads"]), found["samples"])
    assert all(one == other for one, other in sums), sums
    # Of all samples the recorders see different parts: only perf sees the command that starts the other.
    compiled = [row for row in found["functions"] if row["kind"] == "compiled"]
    if truth:
        samples, whole = found["compiled"], sum(row["self_percent"] for row in compiled)
    else:
        kernels = (row for row in compiled if row["name"].startswith("prange kernel"))
        samples, whole = max((row["total"], row["total_percent"]) for row in kernels)
    rows = {}
    for name, row in [*lines.items(), *((row["name"], row) for row in compiled)]:
        for which in ("self", "total"):
            rows[name, which] = 100 * row[f"{which}_percent"] / whole
    return samples / of_one(file), rows


def of_one(file):
    """By how much the samples of a recording count for less, because the periods of some are longer."""
    text = subprocess.run(
        ["perf", "script", "-F", "period", "-i", file], capture_output=True, text=True, check=True
    ).stdout
    periods = [int(word) for word in text.split()]
    return len(periods) * sum(period * period for period in periods) / sum(periods) ** 2


def main():
    jitlisten = os.path.abspath(sys.argv[1])
    seconds = sys.argv[2] if len(sys.argv) > 2 else "120"
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    python = os.path.join(root, "target/venv/numba-0.68.1/bin/python")
    truth = sys.argv[3:] == ["truth"]
    with tempfile.TemporaryDirectory(prefix="jitlisten-agreement-") as place:
        program, ours, perfs = (os.path.join(place, name) for name in ("program.py", "ours.data", "perfs.data"))
        if truth:
            program = os.path.join(root, "python/tests/lines/truth.py")
        else:
            with open(program, "w") as file:
                file.write(PROGRAM)
        perf = [
            "perf", "record", "-q", "-e", "cpu-clock", "-F", str(HZ), "--call-graph", "dwarf,4096", "-o", perfs, "--"
        ]
        record = [jitlisten, "record", "-r", str(HZ), "-o", ours, "--", python, program, seconds]
        changes = dict(NUMBA_NUM_THREADS="2", NUMBA_THREADING_LAYER="workqueue", OPENBLAS_NUM_THREADS="1")
        subprocess.run(perf + record, env={**os.environ, **changes}, check=True, capture_output=True)
        (one, first), (other, second) = read(jitlisten, ours, truth), read(jitlisten, perfs, truth)
    print(
        f"As much as {one:,.0f} samples of one weight in {'compiled code' if truth else 'the kernel'} by jitlisten,"
        f" {other:,.0f} by perf; every sum is exact\n"
    )
    print("| | | jitlisten, % | perf, % | difference, points | sigma |\n| --- | --- | --- | --- | --- | --- |")
    missed = []
    for name, which in sorted(first.keys() | second.keys(), key=lambda row: -first.get(row, 0)):
        ours, perfs = first.get((name, which), 0.0), second.get((name, which), 0.0)
        if max(ours, perfs) < 1:
            continue
        share = (ours + perfs) / 200
        sigma = 100 * math.sqrt(max(share * (1 - share), 0) * (1 / one + 1 / other))
        print(f"| {name.rpartition('/')[2]} | {which} | {ours:.2f} | {perfs:.2f} | {ours - perfs:+.2f} | {sigma:.2f} |")
        if abs(ours - perfs) > max(0.5, 3 * sigma):
            missed.append(name)
    if missed:
        sys.exit("different: " + ", ".join(missed))


if __name__ == "__main__":
    main()
