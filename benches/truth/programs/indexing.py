"""Masks, index arrays, slices."""
import numpy as np
from numba import njit

from phases import phase, run

X = np.random.default_rng(0).random(5000)
I = np.random.default_rng(0).integers(0, 5000, 2000)


@njit
def mask(x, n):
    s = 0.0
    for _ in range(n):
        y = x[x > 0.5]  # mask
        s += y[0]
    return s


@njit
def take(x, i, n):
    s = 0.0
    for _ in range(n):
        y = x[i]  # taken
        s += y[0]
    return s


@njit
def copy(x, n):
    for k in range(n):
        x[1:] = x[:-1]  # copied
    return x[0]


@phase("mask")
def _(n):
    mask(X, n)


@phase("taken")
def _(n):
    take(X, I, n)


@phase("copied")
def _(n):
    copy(X.copy(), n)


run()
