"""Stencils, called from compiled code."""
import numpy as np
from numba import njit, stencil

from phases import phase, run


@stencil
def kernel(a):
    return 0.25 * (a[0, 1] + a[1, 0] + a[0, -1] + a[-1, 0])  # two


@stencil
def line(a):
    left = a[-1] / (a[0] + 1.5)  # one
    return left * 0.5 + np.sqrt(a[1])  # one


@njit
def two(a, n):
    for _ in range(n):
        a = kernel(a)  # two
    return a


@njit
def one(a, n):
    for _ in range(n):
        a = line(a)  # one
    return a


A = np.random.default_rng(0).random((60, 60))


@phase("two")
def _(n):
    two(A, n)


@phase("one")
def _(n):
    one(A.ravel(), n)


run()
