"""Python functions before the first Numba object and after the last, for `python -X perf`: python_perf_jitdump.py
SECONDS

CPython maps memory for some thousand trampolines at a time. The functions in between fill it, so that the late ones lie
in memory that was mapped after the jitdump.
"""

import sys
import time

from numba import njit


@njit
def gamma(n, x):
    for _ in range(n):
        x = x * 0.999 + 1.0 / (x * x + 1.0)
    return x


def early_leaf():
    pass


def early():
    for _ in range(50_000):
        early_leaf()


early()
print(gamma(10, 1.0))
for index in range(8_000):
    scope = {}
    exec(f"def filler_{index}(): pass\nfiller_{index}()", scope)


def late_leaf():
    pass


def late():
    for _ in range(50_000):
        late_leaf()


until = time.process_time() + float(sys.argv[1])
while time.process_time() < until:
    early()
    late()
    gamma(50_000, 1.0)
