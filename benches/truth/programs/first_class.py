"""First-class functions.

A function with a division has two returns, because it may raise. When LLVM merged the returns and gave the result line
0, only 0.90 of the time of `chosen` was attributed to it. Now both returns have the same line.
"""
from numba import njit, types

from phases import phase, run

SIGNATURE = types.float64(types.float64)


@njit(SIGNATURE)
def halve(x):
    return x * 0.5 + 1.0 / (x + 2.5)  # chosen


@njit(SIGNATURE)
def third(x):
    return x / 3.0 + 1.5 / (x * x + 2.5)  # chosen


@njit
def chosen(functions, n):
    x = 1.5
    for i in range(20 * n):  # chosen
        f = functions[i % 2]  # chosen
        x = f(x)  # chosen
    return x


@njit
def passed(f, n):
    x = 1.5
    for _ in range(20 * n):  # passed
        x = f(x)  # passed
    return x


@njit
def costly(x):
    for k in range(20):  # passed
        x = x * 0.9 + 1.5 / (x + 2.5 + k)  # passed
    return x  # passed


@phase("chosen")
def _(n):
    chosen((halve, third), n)


@phase("passed")
def _(n):
    passed(costly, n)


run()
