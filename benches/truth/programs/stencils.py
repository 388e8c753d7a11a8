"""Stencils, called from compiled code."""
import numpy as np
from numba import njit, set_num_threads, stencil

from phases import phase, run


@stencil
def kernel(a):
    return 0.25 * (a[0, 1] + a[1, 0] + a[0, -1] + a[-1, 0])  # two


@stencil
def line(a):
    left = a[-1] / (a[0] + 1.5)  # one
    return left * 0.5 + np.sqrt(a[1])  # one


@stencil(
    cval=0.5,
)
def wide(a):
    across = a[0, -1] + a[0, 1]  # parallel
    return np.sqrt(  # parallel
        across * a[-1, 0] + 1.0  # parallel
    ) / (a[0, 0] + 1.5)  # parallel


@njit(parallel=True)
def parallel(a, n):
    for _ in range(n):
        b = wide(a)  # parallel
    return b


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
B = np.random.default_rng(0).random((300, 300))
# Use one thread, because the time spent waiting for other threads belongs to no line.
set_num_threads(1)


@phase("two")
def _(n):
    two(A, n)


@phase("one")
def _(n):
    one(A.ravel(), n)


@phase("parallel")
def _(n):
    parallel(B, n)


run()
