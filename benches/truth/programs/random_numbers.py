"""Random numbers."""
import numpy as np
from numba import njit

from phases import phase, run


@njit
def uniform(n):
    s = 0.0
    for _ in range(100 * n):  # uniform
        s += np.random.random()  # uniform
    return s


@njit
def normal(n):
    s = 0.0
    for _ in range(50 * n):  # normal
        s += np.random.normal(0.0, 1.0)  # normal
    return s


@njit
def shuffle(a, n):
    for _ in range(n):
        np.random.shuffle(a)  # shuffled
    return a[0]


A = np.arange(200)


@phase("uniform")
def _(n):
    uniform(n)


@phase("normal")
def _(n):
    normal(n)


@phase("shuffled")
def _(n):
    shuffle(A, n)


run()
