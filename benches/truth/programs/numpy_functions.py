"""NumPy functions that Numba reimplements."""
import numpy as np
from numba import njit

from phases import phase, run

A = np.random.default_rng(0).random(2000)
B = np.sort(A)


@njit
def cumulate(a, n):
    s = 0.0
    for _ in range(n):
        s += np.cumsum(a)[-1]  # cumulated
    return s


@njit
def select(a, n):
    s = 0.0
    for _ in range(n):
        s += np.where(a > 0.5, a, -a)[0]  # selected
    return s


@njit
def interpolate(a, b, n):
    s = 0.0
    for _ in range(n):
        s += np.interp(a, b, a)[0]  # interpolated
    return s


@njit
def deviate(a, n):
    s = 0.0
    for _ in range(n):
        s += a.std() + a.max()  # deviated
    return s


@phase("cumulated")
def _(n):
    cumulate(A, n)


@phase("selected")
def _(n):
    select(A, n)


@phase("interpolated")
def _(n):
    interpolate(A, B, n)


@phase("deviated")
def _(n):
    deviate(A, n)


run()
