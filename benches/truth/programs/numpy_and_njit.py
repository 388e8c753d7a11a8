"""A pipeline that alternates between calls of NumPy and of compiled code, on the same arrays."""
import numpy as np
from numba import njit

from phases import phase, run

X = np.random.default_rng(0).random(20_000)


@njit
def smooth(x):
    y = np.empty_like(x)
    y[0] = x[0]
    for i in range(1, x.size):  # smoothed
        y[i] = 0.9 * y[i - 1] + 0.1 * x[i]  # smoothed
    return y


# Compile here: below a line of the phase, compiling would count for it.
smooth(X)


@phase("ordered")
def _(n):
    for _ in range(n):
        np.sort(X)  # ordered


@phase("smoothed")
def _(n):
    for _ in range(n):
        smooth(X)  # smoothed


@phase("mixed")
def _(n):
    for _ in range(n):
        z = np.exp(X)  # mixed
        z = np.cumsum(np.sqrt(z))  # mixed
        z.sum()  # mixed


run()
