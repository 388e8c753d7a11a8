"""Object mode blocks within compiled code."""
import numpy as np
from numba import njit, objmode

from phases import phase, run


def python(a):
    s = 0.0
    for k in range(200):
        s += a / (k + 1.5)
    return s


@njit
def block(n):
    s = 0.0
    for i in range(n):  # block
        with objmode(x="f8"):  # block
            x = python(i)  # block
        s += x  # block
    return s


@njit
def before(n):
    x = 1.5
    for _ in range(1000 * n):  # before
        x = x * 0.999 + 1.5 / (x + 2.5)  # before
    with objmode(y="f8"):
        y = np.sin(x)
    return y


@phase("block")
def _(n):
    block(n)


@phase("before")
def _(n):
    before(n)


run()
