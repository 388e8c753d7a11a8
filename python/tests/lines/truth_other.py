"""Functions in a separate file that `truth.py` calls."""

from numba import njit


@njit(inline="always")
def chain(x):
    for _ in range(3):
        x = x * 0.999 + 1.5 / (x + 2.5)  # other file
    return x
