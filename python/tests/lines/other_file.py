"""Functions in a separate file that `programs.py` calls."""

import math

from numba import njit


@njit(inline="always")
def inlined(x):
    y = math.sqrt(x)
    return y + x * 0.25


@njit
def called(x):
    z = math.exp(-x)
    return z * z


@njit("boolean(int64)")
def odd_slow(n):
    return n % 2 == 1


@njit
def even(n):
    if n == 0:
        return True
    return odd(n - 1)


@njit
def odd(n):
    if n == 0:
        return False
    return even(n - 1)
