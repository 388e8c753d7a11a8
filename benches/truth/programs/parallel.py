"""Parallel loops whose iterations have unequal lengths."""
import time

import numpy as np
from numba import njit, prange

from phases import phase, run

X = np.random.default_rng(0).random(64)


@njit(parallel=True)
def unequal(x, n):
    out = np.empty(x.size)
    for i in prange(x.size):  # unequal
        s = x[i]  # unequal
        for _ in range(i * n):  # unequal
            s = s * 0.999 + 1.5 / (s + 2.5)  # unequal
        out[i] = s  # unequal
    return out


@njit(parallel=True)
def total(x, n):
    s = 0.0
    for i in prange(x.size):  # total
        t = x[i]  # total
        for _ in range(30 * n):  # total
            t = np.sqrt(t + 1.0)  # total
        s += t  # total
    return s


@phase("unequal", time.process_time)
def _(n):
    unequal(X, n)


@phase("total", time.process_time)
def _(n):
    total(X, n)


run()
