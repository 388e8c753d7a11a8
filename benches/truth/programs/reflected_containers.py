"""Reflected Python lists and sets in compiled code."""
import math

from numba import njit

from phases import phase, run


@njit
def append(n):
    values = [0.0]
    for i in range(100 * n):  # appended
        values.append(i * 0.5)  # appended
    return values[-1]


@njit
def add(n):
    values = {0}
    for i in range(30 * n):  # added
        values.add(i % 3000)  # added
    return len(values)


@njit
def comprehend(n):
    s = 0.0
    for k in range(n):
        a = [math.sin(i * 0.1) for i in range(300)]  # comprehension
        s += a[k % 300]
    return s


@phase("appended")
def _(n):
    append(n)


@phase("added")
def _(n):
    add(n)


@phase("comprehension")
def _(n):
    comprehend(n)


run()
