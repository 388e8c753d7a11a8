"""Arrays allocated in compiled code, for memray. Dispatcher_call calls the compiled code, which calls NRT_*.

With the argument `keeps`, five arrays stay allocated while the program waits for a line on standard input."""

import sys

import numba
import numpy as np


@numba.njit
def make(n):
    a = np.empty(n)
    for i in range(n):
        a[i] = i
    return a


@numba.njit
def total(n):
    s = 0.0
    for k in range(20):
        s += make(n + k).sum()
    return s


make(10)
total(10)
# Allocate more than compilation frees, because heaptrack reports the heap at its peak, and an array must be live then.
for _ in range(4):
    total(1_000_000)
if "keeps" in sys.argv:
    kept = [make(1_000_000) for _ in range(5)]
    print("kept", flush=True)
    sys.stdin.readline()
