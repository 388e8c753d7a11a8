"""Python -> Numba -> Python -> Numba: compiled code calls back into Python, which calls compiled code again.

callback.py SECONDS
"""

import sys
import time

from numba import njit, objmode


@njit
def inner(n):
    s = 0.0
    for i in range(n):
        s += (i % 7) * 0.5
    return s


def between(n):
    return inner(n)


@njit
def outer(n):
    with objmode(result="float64"):
        result = between(n)
    return result + inner(n // 2)


print(outer(10))
print("running", flush=True)
deadline = time.process_time() + float(sys.argv[1])
while time.process_time() < deadline:
    outer(2_000_000)
