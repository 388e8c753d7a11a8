"""Compiles, forks, and compiles more on both sides: forks.py"""

import math
import os

from numba import njit


@njit
def common(x):
    return math.erf(x) + 1.0


@njit
def of_parent(x):
    return math.erf(x) + 2.0


@njit
def of_child(x):
    return math.erf(x) + 3.0


common(1.0)
child = os.fork()
if child == 0:
    of_child(1.0)
    os._exit(0)
of_parent(1.0)
_, status = os.waitpid(child, 0)
print(os.getpid(), child, status)
