"""Python functions before the first Numba object and after the last one, for `python -X perf`: python_perf_jitdump.py
SECONDS

CPython maps memory for a few thousand trampolines at a time. Filler functions exhaust that memory, so the trampolines
of the late functions lie in memory that was mapped after the jitdump was created.
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


deadline = time.process_time() + float(sys.argv[1])
while time.process_time() < deadline:
    early()
    late()
    gamma(50_000, 1.0)
