"""Functions defined with `numba.extending.overload`."""
import numpy as np
from numba import njit
from numba.extending import overload

from phases import phase, run


def smooth(x):
    pass


@overload(smooth)
def _overloaded(x):
    def implementation(x):
        for k in range(20):  # inside
            x = x * 0.999 + 1.5 / (x + 2.5 + k)  # inside
        return x

    return implementation


@njit
def inside(n):
    x = 1.5
    for _ in range(50 * n):  # inside
        x = smooth(x)  # inside
    return x


@njit
def numpys(a, n):
    s = 0.0
    for _ in range(n):
        s += np.median(a)  # numpys
    return s


A = np.random.default_rng(0).random(500)


@phase("inside")
def _(n):
    inside(n)


@phase("numpys")
def _(n):
    numpys(A, n)


run()
