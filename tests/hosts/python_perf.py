"""Python functions that call Numba functions, for `python -X perf`: python_perf.py SECONDS

Most of the time goes to Python calls, as CPython's trampolines are few instructions each and perf has to meet them.
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
until = time.process_time() + float(sys.argv[1])
while time.process_time() < until:
    python_outer(1.0)
