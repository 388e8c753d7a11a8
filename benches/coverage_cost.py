#!/usr/bin/env python3
"""What measuring coverage of Numba's code costs, as Markdown: the run time of nine kernels and the time to compile
them.

    PYTHON coverage_cost.py [ROUNDS, default 5] [KERNEL...]
    PYTHON coverage_cost.py threads [ROUNDS, default 3]     the same loops on 1, 2, 4 ... threads, all marking the same
                                                            bytes; nan where the threads never ran side by side

Processes take turns: without, with, without again (A/A). Lines and branches are measured by the same code. Time is
processor time, because machines are shared; of each kernel the least of many, and ratios are of those.
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


def begin(mode):
    """As coverage.py does it when it starts."""
    sys.path.insert(0, os.path.join(HERE, os.pardir, "python"))
    if mode == "coverage":
        from jitlisten._coverage import patches

        patches.install()


def kernels():
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


def measure(mode, only):
    begin(mode)
    from numba import njit

    njit(lambda x: x + 1)(1)
    found = {}
    for name, (_, run) in kernels().items():
        if only and name not in only:
            continue
        began = time.process_time()
        run()
        compiled = time.process_time() - began
        runs = []
        for _ in range(8):
            began = time.process_time()
            run()
            runs.append(time.process_time() - began)
        found[name] = (compiled - min(runs), min(runs))
    print(json.dumps(found))


def with_threads(mode):
    begin(mode)
    import numpy as np
    from numba import njit, prange, set_num_threads

    @njit(nogil=True)
    def step(x):
        if x % 3 == 0:
            return x + 2
        return x + 1

    @njit(nogil=True)
    def calls(out, n):
        # Marks may be in `out` as far as LLVM knows: they are stored in each iteration.
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

    def start(count):
        threads = [threading.Thread(target=calls, args=(np.zeros(1024, np.int64), 100_000_000)) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def parallel(count):
        set_num_threads(count)
        loops(np.zeros(16_000 * count, np.int64), 10_000)

    found = {}
    for name, run in ("threads", start), ("prange", parallel):
        run(1)
        for count in [c for c in (1, 2, 4, 8, 16, 32, 64) if c <= (os.cpu_count() or 1)]:
            times = []
            for _ in range(40):
                began, used = time.perf_counter(), time.process_time()
                run(count)
                wall, used = time.perf_counter() - began, time.process_time() - used
                # Only where the threads have run side by side. A store that waits for another processor's cache uses
                # processor time.
                if wall < 1.2 * used / count:
                    times.append(used / count)
                if len(times) == 7:
                    break
            found["%s, %d" % (name, count)] = statistics.median(times) if times else math.nan
    print(json.dumps(found))


def child(*arguments):
    environment = dict(
        os.environ, NUMBA_THREADING_LAYER="workqueue", NUMBA_NUM_THREADS=os.environ.get("NUMBA_NUM_THREADS", "1")
    )
    done = subprocess.run([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, check=True, env=environment)
    return json.loads(done.stdout)


def geometric_mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def main(arguments):
    if arguments[:1] == ["--once"]:
        measure(arguments[1], arguments[2:])
    elif arguments[:1] == ["--threads"]:
        with_threads(arguments[1])
    elif arguments[:1] == ["threads"]:
        os.environ["NUMBA_NUM_THREADS"] = str(os.cpu_count())
        found = [{mode: child("--threads", mode) for mode in MODES} for _ in range(int((arguments + ["3"])[1]))]
        middle = {
            mode: {name: statistics.median(each[mode][name] for each in found) for name in found[0][mode]}
            for mode in MODES
        }
        print("| threads | without, s for each | with, ratio | without again |\n| --- | --- | --- | --- |")
        for name, without in middle["without"].items():
            print(
                "| %s | %.3f | %s |"
                % (name, without, " | ".join("%.2f" % (middle[mode][name] / without) for mode in MODES[1:]))
            )
    else:
        rounds = int(arguments[0]) if arguments else 5
        found = []
        for _ in range(rounds):
            found.append({mode: child("--once", mode, *arguments[1:]) for mode in MODES})
        report(found)


def report(found):
    least = {
        mode: {name: [min(each[mode][name][at] for each in found) for at in (0, 1)] for name in found[0][mode]}
        for mode in MODES
    }
    print(
        "| kernel | without, ms | with, ratio | without again | compile: with, ratio |\n| --- | --- | --- | --- | --- |"
    )
    ratios = []
    for name, (compiled, run) in least["without"].items():
        row = [least[mode][name][1] / run for mode in MODES[1:]] + [least["coverage"][name][0] / compiled]
        ratios.append(row)
        print("| %s | %.1f | %s |" % (name, run * 1000, " | ".join("%.2f" % ratio for ratio in row)))
    print("| geometric mean | | %s |" % " | ".join("%.2f" % geometric_mean(column) for column in zip(*ratios)))


main(sys.argv[1:])
