"""Compiles, imports, interprets, calls C, runs compiled code and waits. Tests look up lines by their trailing
comments."""

import math
import time

import numpy as np
from numba import njit


@njit
def smooth(a, out, passes):
    for _ in range(passes):
        for i in range(1, a.size - 1):
            out[i] = 0.25 * a[i - 1] + 0.5 * a[i] + 0.25 * a[i + 1]
        for i in range(a.size):
            a[i] = math.exp(-out[i] * out[i])  # compiled
    return a.sum()


@njit
def expression(x, y):
    z = (x - 1.5) * (x + 2.0) / (x * x + 1.0) + np.sqrt(np.abs(y))  # array
    return z.sum()


def parse(lines):
    rows = []
    for line in lines:
        parts = line.split(",")
        rows.append((int(parts[0]), float(parts[1])))  # interpreted
    return rows


def spend(seconds, work):
    deadline = time.process_time() + seconds
    while time.process_time() < deadline:
        work()


def main():
    rows = [f"{i % 97},{i * 0.5}" for i in range(30_000)]
    spend(1.0, lambda: parse(rows))
    a, out = np.linspace(0, 1, 100_000), np.zeros(100_000)
    smooth(a, out, 1), expression(a, out)
    spend(0.7, lambda: smooth(a, out, 5))
    spend(0.7, lambda: expression(a, out))
    generated = {}
    exec(compile("def made(n):\n    return sum(i * i for i in range(n))", "<string>", "exec"), generated)
    spend(0.5, lambda: generated["made"](10_000))
    time.sleep(1.5)  # wait
    print("done")


main()
