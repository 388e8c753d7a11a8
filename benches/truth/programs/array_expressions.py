"""Array expressions, which Numba compiles to separate functions."""
import numpy as np
from numba import njit

from phases import phase, run

X, Y = np.random.default_rng(0).random((2, 5000))


@njit
def poly(x, y, n):
    s = 0.0
    for _ in range(n):
        z = (x - 1.5) * (x + 2.0) / (x * x + 1.0) + np.sqrt(np.abs(y))  # poly
        s += z[0]
    return s


@njit
def trigonometric(x, y, n):
    s = 0.0
    for _ in range(n):
        z = np.sin(x) * np.cos(y)  # trigonometric
        s += z[0]
    return s


@njit
def in_place(x, n):
    for _ in range(n):
        x *= 1.0000001  # in_place
        x += x * 0.5 - x**2 / 3.0  # in_place
    return x[0]


@phase("poly")
def _(n):
    poly(X, Y, n)


@phase("trigonometric")
def _(n):
    trigonometric(X, Y, n)


@phase("in_place")
def _(n):
    in_place(X * 0.1, n)


run()
