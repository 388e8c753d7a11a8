"""Recursive functions, with several returns."""
from numba import njit

from phases import phase, run


@njit
def fib(n):  # fib
    if n < 2:  # fib
        return n  # fib
    return fib(n - 1) + fib(n - 2)  # fib


@njit
def ackermann(m, n):  # ackermann
    if m == 0:  # ackermann
        return n + 1  # ackermann
    if n == 0:  # ackermann
        return ackermann(m - 1, 1)  # ackermann
    return ackermann(m - 1, ackermann(m, n - 1))  # ackermann


@phase("fib")
def _(n):
    for _ in range(n):
        fib(20)


@phase("ackermann")
def _(n):
    for _ in range(n):
        ackermann(2, 100)


run()
