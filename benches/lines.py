#!/usr/bin/env python3
"""What line tables for Numba's code cost, as Markdown: compile time, size of objects, run time of kernels.

    target/release/jitlisten run --no-lines -- PYTHON lines.py [ROUNDS, default 15]  over what users have without lines
    JITLISTEN=unwind LD_PRELOAD=target/release/libjitlisten.so PYTHON lines.py [ROUNDS]  with unwind tables alone
    PYTHON lines.py --once stock|lines      only compiles, once: for line_instructions.py

Children of one process take turns: without lines, with lines, without again (A/A). Time is processor time of the child,
because machines are shared; ratios are of the same round, their median with a 95 % bootstrap interval.
"""

import os
import pickle
import random
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, os.pardir, "python"), os.path.join(HERE, os.pardir, "python", "tests", "lines")]

PROGRAMS = (
    "simple_loop calls prange_reduction vectorized gufunc array_expression typed_dict jit_class closure"
    " several_signatures".split()
)


def install():
    import jitlisten._lines

    jitlisten._lines.install()
    assert jitlisten._lines.status()["active"], jitlisten._lines.status()


def once(lines):
    """Compiles the programs under callgrind, which counts from here on."""
    import objects

    objects.capture()
    import programs

    if lines:
        install()
    subprocess.run(["callgrind_control", "-i", "on", str(os.getpid())], check=True, stdout=subprocess.DEVNULL)
    for name in PROGRAMS:
        programs.PROGRAMS[name]()
    subprocess.run(["callgrind_control", "-i", "off", str(os.getpid())], check=True, stdout=subprocess.DEVNULL)
    assert len(objects.CAPTURED) > len(PROGRAMS)


def sinks():
    """What the library in this process writes."""
    import jitlisten

    return ", ".join(jitlisten.status().sinks) or "none"


def compiled(lines):
    """Seconds to compile the programs, bytes of their objects, seconds of a kernel."""
    import numpy as np
    import objects
    import programs

    if lines:
        install()
    begin = time.process_time()
    for name in PROGRAMS:
        programs.PROGRAMS[name]()
    seconds = time.process_time() - begin
    return seconds, sum(map(len, objects.CAPTURED)), kernel(np)


def kernel(np):
    from numba import njit

    @njit
    def step(x):
        return x * 0.999 + 1.5 / (x + 2.5)

    @njit
    def run(a, rounds):
        total = 0.0
        for _ in range(rounds):
            for i in range(a.size):
                a[i] = step(a[i])
                total += a[i]
        return total

    a = np.linspace(0.5, 9.5, 1000)
    run(a, 1)
    # The least disturbed of several.
    taken = []
    for _ in range(15):
        begin = time.process_time()
        run(a, 4000)
        taken.append(time.process_time() - begin)
    return min(taken)


def in_child(lines):
    with tempfile.TemporaryFile() as file:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                file.write(pickle.dumps(compiled(lines)))
                file.flush()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        file.seek(0)
        return pickle.load(file)


def interval(ratios):
    """The median, and where 95 % of the medians of samples of these are."""
    dice = random.Random(1)
    medians = sorted(statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(2000))
    return "%.3f [%.3f, %.3f]" % (statistics.median(ratios), medians[50], medians[-50])


def quickest(times):
    """The mean of the quickest quarter."""
    return statistics.mean(sorted(times)[: max(1, len(times) // 4)])


def main():
    if sys.argv[1:2] == ["--once"]:
        once(sys.argv[2] == "lines")
        return
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    import objects

    objects.capture()
    import numba
    import programs  # noqa: F401, imported once for all children

    in_child(True)  # what is read from disk is in memory
    found = []
    for _ in range(rounds):
        found.append([in_child(lines) for lines in (False, True, False)])
        print("%d of %d: %s" % (len(found), rounds, found[-1]), file=sys.stderr, flush=True)
    print("Numba %s, %d programs, %d rounds; sinks: %s\n" % (numba.__version__, len(PROGRAMS), rounds, sinks()))
    print("| | without | with lines, ratio | without again, ratio |\n| --- | --- | --- | --- |")
    for at, (what, unit, factor) in enumerate(
        (("compile", "ms", 1000), ("objects", "kB", 0.001), ("kernel", "ms", 1000))
    ):
        columns = [statistics.median(row[0][at] for row in found) * factor]
        ratios = [interval([row[other][at] / row[0][at] for row in found]) for other in (1, 2)]
        print("| %s, %s | %.1f | %s | %s |" % (what, unit, columns[0], *ratios), flush=True)
    # What other work on the machine disturbs least.
    without, lines, again = (quickest([row[column][0] for row in found]) for column in range(3))
    print("| compile, quickest quarter, ms | %.1f | %.3f | %.3f |" % (without * 1000, lines / without, again / without))


if __name__ == "__main__":
    main()
