"""One process of the benchmark: compiles and times every kernel, and prints nanoseconds as JSON.

`compile` is the processor time of all compilations. A kernel's time is the minimum of many short repetitions:
disturbances only prolong a repetition, and some repetitions are not disturbed at all.
"""

import json
import math
import os
import time

os.environ.setdefault("NUMBA_THREADING_LAYER", "workqueue")

import numpy as np
from numba import njit, prange, typeof

SECONDS = 0.3
KERNELS = {}


def kernel(arguments, **options):
    """Registers a kernel and a function that creates its arguments, sized for a few milliseconds."""

    def register(function):
        KERNELS[function.__name__] = (njit(**options)(function), arguments)
        return function

    return register


@kernel(lambda: (300_000,))
def loop(n):
    x = 1.0
    for _ in range(n):
        x = x * 0.999 + 1.0 / (x * x + 1.0)
    return x


@kernel(lambda: (np.linspace(0.0, 1.0, 200_000), np.linspace(1.0, 2.0, 200_000)))
def arrays(a, b):
    return np.sqrt(a * a + b * b) + np.sin(a)


@kernel(lambda: (np.ones((1200, 1200)),))
def stencil(grid):
    after = np.zeros_like(grid)
    for i in range(1, grid.shape[0] - 1):
        for j in range(1, grid.shape[1] - 1):
            after[i, j] = 0.25 * (grid[i - 1, j] + grid[i + 1, j] + grid[i, j - 1] + grid[i, j + 1])
    return after


@kernel(lambda: (np.linspace(0.0, 9.0, 2_000_000),))
def reduction(values):
    total = 0.0
    for value in values:
        total += value * value
    return total


@kernel(lambda: (np.random.default_rng(1).random(30_000),))
def sort(values):
    return np.sort(values)


@kernel(lambda: (160, 120))
def mandelbrot(size, depth):
    total = 0
    for row in range(size):
        for column in range(size):
            c = complex(-2.0 + 3.0 * column / size, -1.5 + 3.0 * row / size)
            z = 0j
            for _ in range(depth):
                z = z * z + c
                if z.real * z.real + z.imag * z.imag > 4.0:
                    break
                total += 1
    return total


@kernel(lambda: (np.random.default_rng(2).random((180, 180)), np.random.default_rng(3).random((180, 180))))
def matmul(a, b):
    c = np.zeros((a.shape[0], b.shape[1]))
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            for k in range(a.shape[1]):
                c[i, j] += a[i, k] * b[k, j]
    return c


@kernel(lambda: (np.random.default_rng(4).random((800, 3)),))
def nbody(position):
    total = 0.0
    for i in range(position.shape[0]):
        for j in range(position.shape[0]):
            dx = position[i, 0] - position[j, 0]
            dy = position[i, 1] - position[j, 1]
            dz = position[i, 2] - position[j, 2]
            total += 1.0 / math.sqrt(dx * dx + dy * dy + dz * dz + 0.01)
    return total


@kernel(lambda: (np.linspace(0.0, 1.0, 1_000_000),), parallel=True)
def parallel(values):
    total = 0.0
    for i in prange(values.size):
        total += math.exp(-values[i])
    return total


# This kernel consists only of calls, which is the worst case for the cost of frame pointers.
@kernel(lambda: (30,))
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


fib = KERNELS["fib"][0]  # noqa: F811


def measure_minimum(function, arguments):
    minimum = None
    deadline = time.perf_counter() + SECONDS
    while minimum is None or time.perf_counter() < deadline:
        started = time.perf_counter_ns()
        function(*arguments)
        elapsed = time.perf_counter_ns() - started
        minimum = elapsed if minimum is None else min(minimum, elapsed)
    return minimum


def main():
    times = {"compile": 0}
    for name, (function, arguments) in KERNELS.items():
        values = arguments()
        started = time.process_time_ns()
        function.compile(tuple(map(typeof, values)))
        times["compile"] += time.process_time_ns() - started
        function(*values)
        times[name] = measure_minimum(function, values)
    print(json.dumps(times))


main()
