"""Python functions that call Numba functions, for `python -X perf`: python_perf.py SECONDS

Python calls take most of the time: CPython's trampolines are only a few instructions long, and perf must sample them.
"""

import sys
import time

from numba import njit

LOOP = 100_000


@njit
def gamma(n, x):
    for _ in range(n):
        x = x * 0.999 + 1.0 / (x * x + 1.0)
    return x


def python_leaf():
    pass


def python_inner(x):
    for _ in range(200_000):
        python_leaf()
    return gamma(LOOP, x)


def python_outer(x):
    return python_inner(x) + 1.0


print(python_outer(1.0))
print("running", flush=True)
deadline = time.process_time() + float(sys.argv[1])
while time.process_time() < deadline:
    python_outer(1.0)
