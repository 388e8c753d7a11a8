"""np.dot and np.linalg.

`norm` is at work in an assembly function of OpenBLAS without unwind tables: perf loses its callers. So did our recorder
(0.80 of the time), until it looked for the return address on top of the stack.
"""
import numpy as np
from numba import njit

from phases import phase, run

A = np.random.default_rng(0).random((40, 40)) + np.eye(40) * 40
V = np.random.default_rng(0).random(2000)


@njit
def multiply(a, n):
    s = 0.0
    for _ in range(n):
        s += np.dot(a, a)[0, 0]  # dot
    return s


@njit
def solve(a, n):
    s = 0.0
    for _ in range(n):
        s += np.linalg.solve(a, a[0])[0]  # solve
    return s


@njit
def norm(v, n):
    s = 0.0
    for _ in range(n):
        s += np.linalg.norm(v)  # norm
    return s


@phase("dot")
def _(n):
    multiply(A, n)


@phase("solve")
def _(n):
    solve(A, n)


@phase("norm")
def _(n):
    norm(V, n)


run()
