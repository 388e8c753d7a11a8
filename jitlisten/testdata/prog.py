import numpy as np
from numba import njit, prange

@njit
def inner(x, n):
    s = 0.0
    for i in range(n):
        s += x * i
    return s

@njit
def outer(x, n):
    return inner(x, n) + 1

@njit(parallel=True)
def total(a):
    s = 0.0
    for i in prange(a.shape[0]):
        s += a[i] * 2
    return s

outer(1.0, 10)
total(np.ones(100))
