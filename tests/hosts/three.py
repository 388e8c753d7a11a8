"""Three functions that programs compile at different times."""

import math

from numba import njit


@njit
def first(x):
    return math.erf(x) + 1.0


@njit
def second(x):
    return math.erf(x) + 2.0


@njit
def third(x):
    return math.erf(x) + 3.0
