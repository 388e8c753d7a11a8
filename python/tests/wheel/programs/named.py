"""Polls the name that ``dladdr`` reports for a compiled function and prints every change: named.py LIBRARY

LIBRARY exports ``name_of``, which calls ``dladdr`` as a crash handler does.
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
last_name = None
while True:
    name = name_of(twice.address)
    if name != last_name:
        print("named", name, flush=True)
        last_name = name
    time.sleep(0.02)
