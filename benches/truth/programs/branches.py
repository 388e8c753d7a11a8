"""Values computed in one of several branches."""
import numpy as np
from numba import njit

from phases import phase, run

A = np.random.default_rng(0).random(1000)


@njit
def sunk(a, n):
    s = 0.0
    for _ in range(n):  # sunk
        for i in range(a.size):  # sunk
            if a[i] > 0.3:  # sunk
                s += np.sqrt(a[i]) * np.sin(a[i])  # sunk
            else:
                s -= np.exp(a[i])  # sunk
    return s


@njit
def joined(a, n):
    x, y = 1.5, 2.5
    for _ in range(n):  # joined
        for i in range(a.size):  # joined
            if a[i] > 0.5:  # joined
                if a[i] > 0.75:  # joined
                    y = x / (y + 1.5)  # joined
                x = y * 0.5 + 1.0  # joined
            else:
                y = x + a[i]  # joined
    return x


@njit
def arrays(a, b, n):
    s = 0.0
    for k in range(100 * n):  # arrays
        c = a  # arrays
        if k % 3 == 1:  # arrays
            c = b  # arrays
        s += c[k % 10]  # arrays
    return s


@phase("sunk")
def _(n):
    sunk(A, n)


@phase("joined")
def _(n):
    joined(A, n)


@phase("arrays")
def _(n):
    arrays(A, A + 1, n)


run()
