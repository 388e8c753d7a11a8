#!/usr/bin/env python3
"""Cost of line tables for Numba's code, as Markdown: compile time, size of objects, run time of a kernel.

    target/release/jitlisten run --no-lines -- PYTHON lines.py [ROUNDS, default 15]   relative to users without lines
    JITLISTEN=unwind LD_PRELOAD=target/release/libjitlisten.so PYTHON lines.py [ROUNDS]   with unwind tables only
    PYTHON lines.py --once stock|lines      only compiles, once: for line_instructions.py

Children of one process run in turns: without lines, with lines, and without again (A/A). Times are processor time of
the child, because machines are shared. Ratios compare runs of the same round. Prints the median of the ratios
with its 95 % bootstrap interval.
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


def install_lines():
    import jitlisten._lines

    jitlisten._lines.install()
    assert jitlisten._lines.status()["active"], jitlisten._lines.status()


def compile_once(lines):
    """Compiles the programs while callgrind counts."""
    import objects

    objects.capture()
    import programs

    if lines:
        install_lines()
    subprocess.run(["callgrind_control", "-i", "on", str(os.getpid())], check=True, stdout=subprocess.DEVNULL)
    for name in PROGRAMS:
        programs.PROGRAMS[name]()
    subprocess.run(["callgrind_control", "-i", "off", str(os.getpid())], check=True, stdout=subprocess.DEVNULL)
    assert len(objects.CAPTURED) > len(PROGRAMS)


def active_sinks():
    """Returns the active sinks of the library in this process."""
    import jitlisten

    return ", ".join(jitlisten.status().sinks) or "none"


def measure(lines):
    """Returns the compile time of the programs, the size of their objects, and the run time of a kernel."""
    import numpy as np
    import objects
    import programs

    if lines:
        install_lines()
    started = time.process_time()
    for name in PROGRAMS:
        programs.PROGRAMS[name]()
    seconds = time.process_time() - started
    return seconds, sum(map(len, objects.CAPTURED)), measure_kernel(np)


def measure_kernel(np):
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
    # Use the run with the least interference.
    times = []
    for _ in range(15):
        started = time.process_time()
        run(a, 4000)
        times.append(time.process_time() - started)
    return min(times)


def run_in_child(lines):
    with tempfile.TemporaryFile() as file:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                file.write(pickle.dumps(measure(lines)))
                file.flush()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        file.seek(0)
        return pickle.load(file)


def interval(ratios):
    """Returns the median and its 95 % bootstrap interval as text."""
    random_source = random.Random(1)
    medians = sorted(statistics.median(random_source.choices(ratios, k=len(ratios))) for _ in range(2000))
    return "%.3f [%.3f, %.3f]" % (statistics.median(ratios), medians[50], medians[-50])


def mean_of_quickest(times):
    """Returns the mean of the quickest quarter."""
    return statistics.mean(sorted(times)[: max(1, len(times) // 4)])


def main():
    if sys.argv[1:2] == ["--once"]:
        compile_once(sys.argv[2] == "lines")
        return
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    import objects

    objects.capture()
    import numba
    import programs  # noqa: F401, imported once for all children

    run_in_child(True)  # warm up the page cache
    results = []
    for _ in range(rounds):
        results.append([run_in_child(lines) for lines in (False, True, False)])
        print("%d of %d: %s" % (len(results), rounds, results[-1]), file=sys.stderr, flush=True)
    print("Numba %s, %d programs, %d rounds; sinks: %s\n" % (numba.__version__, len(PROGRAMS), rounds, active_sinks()))
    print("| | without | with lines, ratio | without again, ratio |\n| --- | --- | --- | --- |")
    for index, (quantity, unit, factor) in enumerate(
        (("compile", "ms", 1000), ("objects", "kB", 0.001), ("kernel", "ms", 1000))
    ):
        columns = [statistics.median(row[0][index] for row in results) * factor]
        ratios = [interval([row[column][index] / row[0][index] for row in results]) for column in (1, 2)]
        print("| %s, %s | %.1f | %s | %s |" % (quantity, unit, columns[0], *ratios), flush=True)
    # Interference from other work is smallest in the quickest rounds.
    without, lines, repeat = (mean_of_quickest([row[column][0] for row in results]) for column in range(3))
    print(
        "| compile, quickest quarter, ms | %.1f | %.3f | %.3f |" % (without * 1000, lines / without, repeat / without)
    )


if __name__ == "__main__":
    main()
