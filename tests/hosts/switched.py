"""Switches the jitdump on when a function is compiled already, off again, and on once more: switched.py

Prints the names of the functions in the order of the steps; the library must be preloaded.
"""

import ctypes
import math

from numba import njit

jitlisten = ctypes.CDLL(None)


def enable():
    assert jitlisten.jitlisten_enable(b"jitdump") == 0


def disable():
    assert jitlisten.jitlisten_disable(b"jitdump") == 0


@njit
def before(x):
    return math.erf(x) + 1.0


@njit
def between(x):
    return math.erf(x) + 2.0


@njit
def after(x):
    return math.erf(x) + 3.0


before(1.0)
enable()
enable()
between(1.0)
disable()
disable()
after(1.0)
enable()
print("before between | before between after")
