"""Exceptions raised and caught in compiled code."""
from numba import njit

from phases import phase, run


@njit
def check(x):
    if x < 0:
        raise ValueError("negative")
    return x**0.5


@njit
def caught(n):
    s = 0.0
    for i in range(20 * n):  # caught
        try:  # caught
            s += check(i - 5 * (i % 3))  # caught
        except Exception:  # caught
            s -= 1.0  # caught
    return s


@phase("caught")
def _(n):
    caught(n)


run()
