#!/usr/bin/env python3
"""Cost of measuring the coverage of Numba's code, as Markdown: run time and compile time of nine kernels.

    PYTHON coverage_cost.py [ROUNDS, default 5] [KERNEL...]
    PYTHON coverage_cost.py threads [ROUNDS, default 3]     the same loops on 1, 2, 4 ... threads that all mark the same
                                                            bytes; nan if the threads never ran in parallel

Processes run in turns: without coverage, with it, and without it again (A/A). The same code measures lines and
branches. Times are processor time, because machines are shared. A ratio compares the minimum times of a kernel.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MODES = ("without", "coverage", "again")


def install_coverage(mode):
    """Installs the patches, as coverage.py does when it starts."""
    sys.path.insert(0, os.path.join(HERE, os.pardir, "python"))
    if mode == "coverage":
        from jitlisten._coverage import patches

        patches.install()


def make_kernels():
    import numpy as np
    from numba import njit, prange

    @njit
    def nbody(pos, mass, out):
        n = pos.shape[0]
        for i in range(n):
            x, y = 0.0, 0.0
            for j in range(n):
                dx = pos[j, 0] - pos[i, 0]
                dy = pos[j, 1] - pos[i, 1]
                near = dx * dx + dy * dy + 0.01
                pull = mass[j] / (near * math.sqrt(near))
                x += dx * pull
                y += dy * pull
            out[i, 0] = x
            out[i, 1] = y

    @njit
    def mandelbrot(n, depth):
        total = 0
        for a in range(n):
            for b in range(n):
                c = complex(-2 + 3 * a / n, -1.5 + 3 * b / n)
                z = 0j
                k = 0
                while k < depth:
                    z = z * z + c
                    if z.real * z.real + z.imag * z.imag > 4:
                        break
                    k += 1
                total += k
        return total

    @njit(fastmath=True)
    def squares(a):
        s = 0.0
        for i in range(a.shape[0]):
            s += a[i] * a[i]
        return s

    @njit
    def axpy(a, b, k):
        for i in range(a.shape[0]):
            b[i] = a[i] * k + b[i]

    @njit
    def sieve(n):
        s = np.ones(n, np.uint8)
        for i in range(2, n):
            if s[i]:
                j = i * i
                while j < n:
                    s[j] = 0
                    j += i
        return s.sum()

    @njit
    def quicksort(a, lo, hi):
        while lo < hi:
            pivot = a[(lo + hi) // 2]
            i = lo
            j = hi
            while i <= j:
                while a[i] < pivot:
                    i += 1
                while a[j] > pivot:
                    j -= 1
                if i <= j:
                    t = a[i]
                    a[i] = a[j]
                    a[j] = t
                    i += 1
                    j -= 1
            quicksort(a, lo, j)
            lo = i

    @njit
    def add(x):
        return x + 1

    @njit
    def calls(n):
        s = 0
        for i in range(n):
            s = add(s) ^ i
        return s

    @njit(parallel=True)
    def diffuse(a, b):
        for i in prange(1, a.shape[0] - 1):
            for j in range(1, a.shape[1] - 1):
                b[i, j] = 0.25 * (a[i - 1, j] + a[i + 1, j] + a[i, j - 1] + a[i, j + 1])

    @njit
    def collatz(n):
        best = 0
        for i in range(1, n):
            k = i
            c = 0
            while k != 1:
                if k % 2 == 0:
                    k //= 2
                else:
                    k = 3 * k + 1
                c += 1
            if c > best:
                best = c
        return best

    rng = np.random.default_rng(1)
    bodies, masses, pulls = rng.random((700, 2)), rng.random(700), np.zeros((700, 2))
    long, other = rng.random(1 << 16), np.zeros(1 << 16)
    grid, after = rng.random((500, 500)), np.zeros((500, 500))
    unsorted = rng.random(200_000)
    return {
        "nbody": (nbody, lambda: nbody(bodies, masses, pulls)),
        "mandelbrot": (mandelbrot, lambda: mandelbrot(100, 200)),
        "squares": (squares, lambda: [squares(long) for _ in range(300)]),
        "axpy": (axpy, lambda: [axpy(long, other, 1.5) for _ in range(300)]),
        "sieve": (sieve, lambda: sieve(1_000_000)),
        "quicksort": (quicksort, lambda: quicksort(unsorted.copy(), 0, len(unsorted) - 1)),
        "calls": (calls, lambda: calls(20_000_000)),
        "diffuse": (diffuse, lambda: [diffuse(grid, after) for _ in range(20)]),
        "collatz": (collatz, lambda: collatz(50_000)),
    }


def measure(mode, selected):
    install_coverage(mode)
    from numba import njit

    njit(lambda x: x + 1)(1)
    results = {}
    for name, (_, run) in make_kernels().items():
        if selected and name not in selected:
            continue
        started = time.process_time()
        run()
        first_run = time.process_time() - started
        run_times = []
        for _ in range(8):
            started = time.process_time()
            run()
            run_times.append(time.process_time() - started)
        results[name] = (first_run - min(run_times), min(run_times))
    print(json.dumps(results))


def measure_threads(mode):
    install_coverage(mode)
    import numpy as np
    from numba import njit, prange, set_num_threads

    @njit(nogil=True)
    def step(x):
        if x % 3 == 0:
            return x + 2
        return x + 1

    @njit(nogil=True)
    def calls(out, n):
        # LLVM must assume that `out` and the marks of `step` overlap, so it stores them in each iteration.
        for i in range(n):
            out[i & 1023] = step(i)

    @njit(parallel=True)
    def loops(out, n):
        for i in prange(out.shape[0]):
            total = 0
            for k in range(n):
                if (i ^ k) & 7 == 0:
                    total += 2
                else:
                    total ^= k
            out[i] = total

    def run_in_threads(count):
        threads = [threading.Thread(target=calls, args=(np.zeros(1024, np.int64), 2_000_000)) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def run_prange(count):
        set_num_threads(count)
        loops(np.zeros(2_000 * count, np.int64), 2_000)

    results = {}
    for name, run in ("threads", run_in_threads), ("prange", run_prange):
        run(1)
        for count in [limit for limit in (1, 2, 4, 8, 16, 32, 64) if limit <= (os.cpu_count() or 1)]:
            times = []
            for _ in range(400):
                started, processor_time = time.perf_counter(), time.process_time()
                run(count)
                wall, processor_time = time.perf_counter() - started, time.process_time() - processor_time
                # Discard a run whose threads did not run in parallel. The limit is loose, because waiting for a cache
                # line that another processor owns also counts as processor time.
                if wall < 1.2 * processor_time / count:
                    times.append(processor_time / count)
                if len(times) == 7:
                    break
            results["%s, %d" % (name, count)] = statistics.median(times) if times else math.nan
    print(json.dumps(results))


def run_child(*arguments):
    environment = dict(
        os.environ, NUMBA_THREADING_LAYER="workqueue", NUMBA_NUM_THREADS=os.environ.get("NUMBA_NUM_THREADS", "1")
    )
    result = subprocess.run([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, check=True, env=environment)
    return json.loads(result.stdout)


def geometric_mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def main(arguments):
    if arguments[:1] == ["--once"]:
        measure(arguments[1], arguments[2:])
    elif arguments[:1] == ["--threads"]:
        measure_threads(arguments[1])
    elif arguments[:1] == ["threads"]:
        os.environ["NUMBA_NUM_THREADS"] = str(os.cpu_count())
        results = [{mode: run_child("--threads", mode) for mode in MODES} for _ in range(int((arguments + ["3"])[1]))]
        medians = {
            mode: {name: statistics.median(result[mode][name] for result in results) for name in results[0][mode]}
            for mode in MODES
        }
        print("| threads | without, s for each | with, ratio | without again |\n| --- | --- | --- | --- |")
        for name, stock_seconds in medians["without"].items():
            print(
                "| %s | %.3f | %s |"
                % (
                    name,
                    stock_seconds,
                    " | ".join("%.2f" % (medians[mode][name] / stock_seconds) for mode in MODES[1:]),
                )
            )
    else:
        rounds = int(arguments[0]) if arguments else 5
        results = []
        for _ in range(rounds):
            results.append({mode: run_child("--once", mode, *arguments[1:]) for mode in MODES})
        print_report(results)


def print_report(results):
    minima = {
        mode: {
            name: [min(result[mode][name][index] for result in results) for index in (0, 1)]
            for name in results[0][mode]
        }
        for mode in MODES
    }
    print(
        "| kernel | without, ms | with, ratio | without again | compile: with, ratio |\n| --- | --- | --- | --- | --- |"
    )
    ratios = []
    for name, (stock_compile, stock_run) in minima["without"].items():
        row = [minima[mode][name][1] / stock_run for mode in MODES[1:]] + [minima["coverage"][name][0] / stock_compile]
        ratios.append(row)
        print("| %s | %.1f | %s |" % (name, stock_run * 1000, " | ".join("%.2f" % ratio for ratio in row)))
    print("| geometric mean | | %s |" % " | ".join("%.2f" % geometric_mean(column) for column in zip(*ratios)))


main(sys.argv[1:])
