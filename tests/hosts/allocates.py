"""Arrays made in compiled code, for memray: NRT_* allocates, called by compiled code, called by Dispatcher_call.

`keeps`: then keeps five, and waits for a line."""

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
# More than compiling frees: heaptrack reports of the heap at its peak, and an array is to be in it.
for _ in range(4):
    total(1_000_000)
if "keeps" in sys.argv:
    kept = [make(1_000_000) for _ in range(5)]
    print("kept", flush=True)
    sys.stdin.readline()
