"""Phases inside one function: in its branches, in consecutive loops, and in one loop."""
import numpy as np
from numba import njit

from phases import phase, run

A = np.random.default_rng(0).random(1000)
B = np.zeros(1000)


@njit
def branches(kind, a, n):
    s = 0.0
    if kind == 0:
        for _ in range(n):  # divided
            for i in range(a.size):  # divided
                s = s * 0.5 + 1.0 / (a[i] + s + 1.0)  # divided
        return s
    elif kind == 1:
        k = 0
        while k < 1000 * n:  # chained
            k += 1  # chained
            if 0.2 < s <= 0.9:  # chained
                s = np.cos(s)  # chained
                continue  # chained
            s = s * 0.3 + 0.4  # chained
        else:
            s += 1
        return s
    for j in range(n):  # counted
        t = 0  # counted
        for i in range(1, a.size):  # counted
            if a[i] > a[i - 1] and a[i] > 0.5 or t > 100:  # counted
                t += 1  # counted
        s += t + j  # counted
    return s


# Two of the loops are identical, so LLVM could merge them.
@njit
def loops(a, b, first, second, third, fourth):
    for _ in range(first):  # first
        for i in range(a.size):  # first
            b[i] = a[i] * 2.0 + b[i] * 0.5  # first
    for _ in range(second):  # second
        for i in range(a.size):  # second
            b[i] = a[i] * 2.0 + b[i] * 0.5  # second
    for i in range(a.size):
        s = a[i]
        for _ in range(third):  # third
            s = s * 0.9 + 1.0 / (s + 1.0)  # third
        for _ in range(fourth):  # fourth
            s = np.sqrt(s + 0.5)  # fourth
        b[i] = s


@phase("divided")
def _(n):
    branches(0, A, n)


@phase("chained")
def _(n):
    branches(1, A, n)


@phase("counted")
def _(n):
    branches(2, A, n)


@phase("first")
def _(n):
    loops(A, B, n, 0, 0, 0)


@phase("second")
def _(n):
    loops(A, B, 0, n, 0, 0)


@phase("third")
def _(n):
    loops(A, B, 0, 0, n, 0)


@phase("fourth")
def _(n):
    loops(A, B, 0, 0, 0, n)


run()
