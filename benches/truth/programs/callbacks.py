"""Functions that C code calls back: `cfunc` called by scipy and by libc."""
import ctypes

import numpy as np
from numba import cfunc, types
from scipy import LowLevelCallable, integrate

from phases import phase, run


@cfunc("f8(f8)")
def integrand(x):
    s = 0.5  # integrated
    for k in range(2000):  # integrated
        s = s * 0.9 + 1.5 / (s + x + k)  # integrated
    return s  # integrated


@cfunc(types.int32(types.CPointer(types.int64), types.CPointer(types.int64)))
def compare(a, b):
    x, y = a[0], b[0]  # sorted
    for k in range(20):  # sorted
        x = (x * 7919 + k) % 1000003  # sorted
        y = (y * 7919 + k) % 1000003  # sorted
    return (x > y) - (x < y)  # sorted


CALLABLE = LowLevelCallable(integrand.ctypes)
LIBC = ctypes.CDLL(None)
FUNCTION = ctypes.cast(compare.address, ctypes.c_void_p)


@phase("integrated")
def _(n):
    for _ in range(n):
        integrate.quad(CALLABLE, 0.0, 1.0, epsabs=0, limit=50)


@phase("sorted")
def _(n):
    a = np.arange(20 * n)
    LIBC.qsort(ctypes.c_void_p(a.ctypes.data), ctypes.c_size_t(a.size), ctypes.c_size_t(8), FUNCTION)


run()
