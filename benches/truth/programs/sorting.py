"""Sorting."""
import numpy as np
from numba import njit

from phases import phase, run

A = np.random.default_rng(0).random(2000)


@njit
def arrays(a, n):
    s = 0.0
    for _ in range(n):
        s += np.sort(a)[0]  # arrays
    return s


@njit
def places(a, n):
    s = 0
    for _ in range(n):
        s += np.argsort(a)[0]  # places
    return s


@njit
def lists(n):
    s = 0
    for k in range(n):
        values = [(i * 7919) % 1009 for i in range(300)]  # lists
        values.sort()  # lists
        s += values[k % 300]
    return s


@phase("arrays")
def _(n):
    arrays(A, n)


@phase("places")
def _(n):
    places(A, n)


@phase("lists")
def _(n):
    lists(n)


run()
