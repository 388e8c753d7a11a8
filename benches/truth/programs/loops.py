"""Loops over scalars."""
import numpy as np
from numba import njit

from phases import phase, run


@njit
def divides(n):
    x = 1.5
    for _ in range(1000 * n):  # divides
        x = x * 0.999 + 1.5 / (x + 2.5)  # divides
    return x


@njit
def nested(n):
    s = 0
    for _ in range(n):  # nested
        k = 977  # nested
        while k != 1:  # nested
            k = k // 2 if k % 2 == 0 else 3 * k + 1  # nested
            s += k  # nested
    return s


@njit
def rows(a, n):
    s = 0.0
    for _ in range(n):  # rows
        for i in range(a.shape[0]):  # rows
            for j in range(a.shape[1]):  # rows
                s += a[i, j] * a[j, i]  # rows
    return s


A = np.random.default_rng(0).random((64, 64))


@phase("divides")
def _(n):
    divides(n)


@phase("nested")
def _(n):
    nested(n)


@phase("rows")
def _(n):
    rows(A, n)


run()
