"""Strings."""
from numba import njit

from phases import phase, run


@njit
def concatenate(n):
    k = 0
    for i in range(5 * n):  # concatenated
        s = "abc" + ("d" if i % 3 else "ef")  # concatenated
        k += len(s)  # concatenated
    return k


@njit
def split(text, n):
    k = 0
    for _ in range(n):  # split
        k += len(text.split(" "))  # split
    return k


@phase("concatenated")
def _(n):
    concatenate(n)


@phase("split")
def _(n):
    split("one two three four five", n)


run()
