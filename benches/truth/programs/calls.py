"""Calls that LLVM inlines, that Numba inlines, and that remain calls."""
import numpy as np
from numba import njit

from phases import phase, run


@njit
def step(x):
    return x * 0.999 + 1.5 / (x + 2.5)


@njit(inline="always")
def always(x):
    return x * 0.998 + 1.25 / (x + 3.5)


@njit(inline="never")
def long(x):
    for k in range(40):
        x = x * 0.999 + np.exp(-x) / (x + 2.5 + k)
    return x


@njit
def by_llvm(n):
    x = 1.5
    for _ in range(1000 * n):  # by_llvm
        x = step(x)  # by_llvm
    return x


@njit
def by_numba(n):
    x = 1.5
    for _ in range(1000 * n):  # by_numba
        x = always(x)  # by_numba
    return x


@njit
def called(n):
    x = 1.5
    for _ in range(30 * n):  # called
        x = long(x)  # called
    return x


@njit
def makes(n):
    factor = 0.5 + n * 1e-9

    def closed(x):
        return x * factor + 1.5 / (x + 2.5)

    x = 1.5
    for _ in range(1000 * n):  # closure
        x = closed(x)  # closure
    return x


@phase("by_llvm")
def _(n):
    by_llvm(n)


@phase("by_numba")
def _(n):
    by_numba(n)


@phase("called")
def _(n):
    called(n)


@phase("closure")
def _(n):
    makes(n)


run()
