"""Asks a library all the time what a compiled function is called, and says so when that changes: named.py LIBRARY

The library's own call of ``dladdr`` is asked, as a crash handler's is.
"""

import ctypes
import sys
import time

import numba

name_of = ctypes.CDLL(sys.argv[1]).name_of
name_of.argtypes, name_of.restype = [ctypes.c_void_p], ctypes.c_char_p


@numba.cfunc("float64(float64)")
def twice(x):
    return 2.0 * x


print("ready", flush=True)
before = None
while True:
    name = name_of(twice.address)
    if name != before:
        print("named", name, flush=True)
        before = name
    time.sleep(0.02)
