"""np.dot and np.linalg.

`norm` spends its time in an assembly function of OpenBLAS without unwind tables, so perf loses its callers. Our
recorder did, too (0.80 of the time), before it searched the top of the stack for the return address.
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
