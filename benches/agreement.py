#!/usr/bin/env python3
"""Compares the shares of functions and lines in two recordings of the same run: perf's and `jitlisten record`'s.

    benches/agreement.py JITLISTEN [SECONDS, default 120] [truth]

Needs perf, and the Python of target/venv/numba-0.68.1. The default program runs four loops of known weight on two
threads, with random numbers of iterations; one loop is inlined, another calls `exp`. With `truth`, the program is
python/tests/lines/truth.py: five programs with loops in the ratio 3:1 (plain, inlined, from two files, with calls of
`exp`, in a `prange`), also with random iteration counts. `jitlisten lines --json` reads both recordings.

Prints, for each function and line, its share in both recordings (weighted by period), the difference, and the sigma
that the difference of two independent recordings would have. Exits with status 1 if the shares of a function or line
differ by more than half a point and three sigma. Asserts that all sums are exact.

SECONDS is processor time. A sigma of 0.15 points takes about 130,000 samples: 260 seconds on two cores at 250 Hz. CPU
timers cannot fire more often on a kernel with 250 ticks per second. A thread that runs for less than a tick at a time
gets fewer samples with a period of several ticks each. Hence shares are computed from periods rather than numbers of
samples, and long periods increase the sigma. perf copies stacks (250 MB per minute), because a frame-pointer walk loses
the callers of `exp`, which has no frame pointer. perf also samples the kernel if it is permitted to, since our timers
count kernel time as well, and a thread in a loop of system calls spends most of its time there.
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


def read_shares(jitlisten, file, truth):
    """Returns the effective number of samples in the `prange` kernel and its callees, and the shares of functions and
    lines in percent of its time. With `truth`, both refer to all compiled code."""
    text = subprocess.run([jitlisten, "lines", "--json", "-", file], capture_output=True, text=True, check=True).stdout
    report = json.loads(text)
    lines = {f"{file['path']}:{line['line']}": line for file in report["files"] for line in file["lines"]}
    self_samples = sum(line["self"] for line in lines.values())
    outside_samples = sum(row["samples"] for row in report["outside"])
    assert len(lines) == sum(len(file["lines"]) for file in report["files"])
    sums = (
        (self_samples + report["without_line"], report["compiled"]),
        (report["compiled"] + outside_samples, report["samples"]),
        (sum(row["self"] for row in report["functions"]), report["samples"]),
        (sum(row["samples"] for row in report["threads"]), report["samples"]),
    )
    assert all(left == right for left, right in sums), sums
    # Compare shares of compiled code, because only perf also samples the `jitlisten record` command.
    compiled = [row for row in report["functions"] if row["kind"] == "compiled"]
    if truth:
        samples, total_percent = report["compiled"], sum(row["self_percent"] for row in compiled)
    else:
        kernels = (row for row in compiled if row["name"].startswith("prange kernel"))
        samples, total_percent = max((row["total"], row["total_percent"]) for row in kernels)
    rows = {}
    for name, row in [*lines.items(), *((row["name"], row) for row in compiled)]:
        for kind in ("self", "total"):
            rows[name, kind] = 100 * row[f"{kind}_percent"] / total_percent
    return samples / variance_factor(file), rows


def variance_factor(file):
    """Returns the factor (at least 1) by which unequal periods reduce the effective number of samples."""
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
    with tempfile.TemporaryDirectory(prefix="jitlisten-agreement-") as directory:
        program, our_data, perf_data = (
            os.path.join(directory, name) for name in ("program.py", "ours.data", "perfs.data")
        )
        if truth:
            program = os.path.join(root, "python/tests/lines/truth.py")
        else:
            with open(program, "w") as file:
                file.write(PROGRAM)
        perf = ["perf", "record", "-q", "-e", "cpu-clock", f"-F{HZ}", "--call-graph=dwarf,4096", "-o", perf_data, "--"]
        record = [jitlisten, "record", "-r", str(HZ), "-o", our_data, "--", python, program, seconds]
        variables = dict(NUMBA_NUM_THREADS="2", NUMBA_THREADING_LAYER="workqueue", OPENBLAS_NUM_THREADS="1")
        subprocess.run(perf + record, env={**os.environ, **variables}, check=True, capture_output=True)
        (our_samples, our_rows), (perf_samples, perf_rows) = (
            read_shares(jitlisten, our_data, truth),
            read_shares(jitlisten, perf_data, truth),
        )
    print(
        f"As much as {our_samples:,.0f} samples of one weight in {'compiled code' if truth else 'the kernel'} by"
        f" jitlisten, {perf_samples:,.0f} by perf; every sum is exact\n"
    )
    print("| | | jitlisten, % | perf, % | difference, points | sigma |\n| --- | --- | --- | --- | --- | --- |")
    mismatches = []
    for name, kind in sorted(our_rows.keys() | perf_rows.keys(), key=lambda row: -our_rows.get(row, 0)):
        our_share, perf_share = our_rows.get((name, kind), 0.0), perf_rows.get((name, kind), 0.0)
        if max(our_share, perf_share) < 1:
            continue
        mean_share = (our_share + perf_share) / 200
        sigma = 100 * math.sqrt(max(mean_share * (1 - mean_share), 0) * (1 / our_samples + 1 / perf_samples))
        print(
            f"| {name.rpartition('/')[2]} | {kind} | {our_share:.2f} | {perf_share:.2f}"
            f" | {our_share - perf_share:+.2f} | {sigma:.2f} |"
        )
        if abs(our_share - perf_share) > max(0.5, 3 * sigma):
            mismatches.append(name)
    if mismatches:
        sys.exit("different: " + ", ".join(mismatches))


if __name__ == "__main__":
    main()
