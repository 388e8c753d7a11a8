"""Generators in compiled code."""
from numba import njit

from phases import phase, run


@njit
def values(n):
    x = 1.5
    for i in range(n):  # inlined
        x = x * 0.999 + 1.5 / (x + 2.5)  # inlined
        yield x  # inlined


@njit
def inlined(n):
    s = 0.0
    for x in values(100 * n):  # inlined
        s += x  # inlined
    return s


@phase("inlined")
def _(n):
    inlined(n)


run()
