"""Runs compiled code, and switches the jitdump on when it has run: switched_late.py SECONDS"""

import ctypes
import sys
import time

from numba import njit


@njit
def kernel(n, x):
    for _ in range(n):
        x = x * 0.999 + 1.0 / (x * x + 1.0)
    return x


kernel(10, 1.0)
until = time.process_time() + float(sys.argv[1])
while time.process_time() < until:
    kernel(1_000_000, 1.0)
assert ctypes.CDLL(None).jitlisten_enable(b"jitdump") == 0
