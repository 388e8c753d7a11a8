"""Compiles a function, waits for a line on standard input, then calls it CALLS times: counted_calls.py CALLS"""

import math
import sys

from numba import njit


@njit
def counted(n, x):
    for _ in range(n):
        x = x * 0.999 + 1.0 / (x * x + 1.0)
    return math.atan2(x, 3.0)


counted(1, 1.0)
print("waiting", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[1])):
    counted(5, 1.0)
