"""Runs compiled code with line tables: `hot.py SECONDS`. Prints `running` after everything has been compiled."""

import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, os.pardir, os.pardir)]

import jitlisten._lines

jitlisten._lines.install()

import numpy as np
from numba import njit


@njit
def inner(x):
    return x * 0.999 + 1.5 / (x + 2.5)  # hot


@njit
def outer(a, rounds):
    x = a[0]
    for _ in range(rounds):
        x = x * 0.5  # before
        for _ in range(a.size):
            x = inner(x)  # call
    return x


a = np.linspace(0.5, 9.5, 1000)
outer(a, 10)
print("running", flush=True)
deadline = time.monotonic() + float(sys.argv[1])
while time.monotonic() < deadline:
    outer(a, 20000)
