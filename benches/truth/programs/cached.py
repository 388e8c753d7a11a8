"""Code from Numba's cache: compiled once, then loaded by other dispatchers of the same functions."""
import numpy as np
from numba import njit

from phases import phase, run


def loop(n):
    x = 1.5
    for _ in range(1000 * n):  # loop
        x = x * 0.999 + 1.5 / (x + 2.5)  # loop
    return x


def expression(a, n):
    s = 0.0
    for _ in range(n):
        b = a * a / (a + 1.5)  # expression
        s += b[0]
    return s


A = np.random.default_rng(0).random(3000)
njit(cache=True)(loop)(1)
njit(cache=True)(expression)(A, 1)
cached_loop, cached_expression = njit(cache=True)(loop), njit(cache=True)(expression)


@phase("loop")
def _(n):
    cached_loop(n)


@phase("expression")
def _(n):
    cached_expression(A, n)


run()
assert cached_loop.stats.cache_hits and cached_expression.stats.cache_hits, (cached_loop.stats, cached_expression.stats)
