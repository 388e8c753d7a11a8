"""Functions defined by source text that `exec` runs."""
from numba import njit

from phases import phase, run

TEXT = """
def generated(n):
    x = 1.5
    for _ in range(1000 * n):
        x = x * 0.999 + 1.5 / (x + 2.5)
    return x
"""
names = {}
exec(TEXT, names)
generated = njit(names["generated"])


@njit
def calls(n):
    return generated(n)  # called


@phase("called")
def _(n):
    calls(n)


run()
