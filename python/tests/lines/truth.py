"""Programs with a known distribution of time over lines: `truth.py SECONDS`, in CPU time; 0 seconds means thirty
rounds, for callgrind.

Tests find lines by their trailing comments. In each pair, the same statement runs three times as often on one line as
on the other.

The lengths of the rounds vary, because samples follow the kernel's tick and would otherwise stay in step with the
rounds. The sequence of lengths is the same in every run.
"""

import math
import os
import random
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, os.pardir, os.pardir)]

import jitlisten._lines

jitlisten._lines.install()
assert jitlisten._lines.status()["numba"] is None

import numpy as np
import truth_other
from numba import njit, prange

assert jitlisten._lines.status()["active"], jitlisten._lines.status()

#: Average number of elements in a round.
AVERAGE_ELEMENTS = 4000


@njit
def two_loops(a):
    x = a[0]
    for _ in range(3 * a.size):
        x = x * 0.999 + 1.5 / (x + 2.5)  # loop three
    for _ in range(a.size):
        x = x * 0.999 + 1.5 / (x + 2.5)  # loop one
    return x


@njit
def light(x):
    return x * 0.999 + 1.5 / (x + 2.5)  # light callee


@njit
def heavy(x):
    for _ in range(3):
        x = x * 0.999 + 1.5 / (x + 2.5)  # heavy callee
    return x


@njit
def inlined(a):
    x = a[0]
    for _ in range(a.size):
        x = light(x)
        x = heavy(x)
    return x


@njit
def two_files(a):
    x = a[0]
    for _ in range(a.size):
        x = truth_other.chain(x)
        x = x * 0.999 + 1.5 / (x + 2.5)  # own line
    return x


@njit
def costly_calls(a):
    x = a[0]
    for _ in range(3 * a.size):
        x = math.exp(-x)  # costly three
    for _ in range(a.size):
        x = math.exp(-x)  # costly one
    return x


@njit(parallel=True)
def parallel(a):
    out = np.empty(a.size // 64)
    for k in prange(out.size):
        x = a[k] + 0.5
        for _ in range(300):
            x = x * 0.999 + 1.5 / (x + 2.5)  # parallel three
        for _ in range(100):
            x = x * 0.999 + 1.5 / (x + 2.5)  # parallel one
        out[k] = x
    return out[0]


def main():
    a = np.linspace(0.5, 9.5, 2 * AVERAGE_ELEMENTS)
    rng = random.Random(1)
    programs = (two_loops, inlined, two_files, costly_calls, parallel)
    for program in programs:
        program(a[:AVERAGE_ELEMENTS])
    deadline = time.process_time() + float(sys.argv[1])
    rounds = 30
    while rounds > 0 or time.process_time() < deadline:
        for program in programs:
            program(a[: rng.randrange(AVERAGE_ELEMENTS // 10, 2 * AVERAGE_ELEMENTS - AVERAGE_ELEMENTS // 10)])
        rounds -= 1


main()
