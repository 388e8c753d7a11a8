"""A kernel with two loops of the same body, one with three times the iterations of the other: two_loops.py SECONDS

Each iteration depends on the division of the previous one, so the first loop takes three quarters of the time.
"""

import sys
import time

from numba import njit


@njit
def kernel(n, x):
    for _ in range(3 * n):
        x = x * 0.999 + 1.0 / (x * x + 1.0)  # three of four
    for _ in range(n):
        x = x * 0.999 + 1.0 / (x * x + 1.0)  # one of four
    return x


print(kernel(10, 1.0))
deadline = time.process_time() + float(sys.argv[1])
while time.process_time() < deadline:
    kernel(500_000, 1.0)
