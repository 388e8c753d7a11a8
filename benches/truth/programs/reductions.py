"""Sums and maxima, with and without fastmath."""
import numpy as np
from numba import njit

from phases import phase, run

X = np.random.default_rng(0).random(4096)


@njit
def strict(x, n):
    s = 0.0
    for _ in range(n):  # strict
        for i in range(x.size):  # strict
            s += x[i] * x[i]  # strict
    return s


@njit(fastmath=True)
def fast(x, n):
    s = 0.0
    for _ in range(n):  # fast
        for i in range(x.size):  # fast
            s += np.sqrt(x[i])  # fast
    return s


@njit
def largest(x, n):
    m = 0.0
    for k in range(n):  # largest
        for i in range(x.size):  # largest
            m = max(m, x[i] - k)  # largest
    return m


@phase("strict")
def _(n):
    strict(X, n)


@phase("fast")
def _(n):
    fast(X, n)


@phase("largest")
def _(n):
    largest(X, n)


run()
