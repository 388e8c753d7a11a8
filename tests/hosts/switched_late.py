"""Runs compiled code and enables the jitdump afterwards: switched_late.py SECONDS"""

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
deadline = time.process_time() + float(sys.argv[1])
while time.process_time() < deadline:
    kernel(1_000_000, 1.0)
assert ctypes.CDLL(None).jitlisten_enable(b"jitdump") == 0
