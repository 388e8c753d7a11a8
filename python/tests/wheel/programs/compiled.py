"""Runs compiled code in the main thread, either forever with the GIL, or without the GIL until the file given as an
argument exists."""

import ctypes
import os
import sys
import threading
import time

import numba
import numpy as np

# An opaque call, so that LLVM cannot assume `end` is unchanged.
opaque_call = ctypes.CDLL(None).sched_yield
opaque_call.argtypes, opaque_call.restype = [], ctypes.c_int


def loops(n, stop_flag):
    total = 0.0
    while total >= 0 and stop_flag[0] == 0:
        opaque_call()
        for i in range(n):
            total += (i % 7) * 0.5
        total *= 0.5
    return total


endless = numba.njit(loops)
without_gil = numba.njit(nogil=True)(loops)


@numba.njit
def begin(n, stop_flag):
    with numba.objmode():
        print("pid", os.getpid(), flush=True)
        print("ready", flush=True)
    return endless(n, stop_flag)


def wait_for_file(path, stop_flag):
    while not os.path.exists(path):
        time.sleep(0.05)
    stop_flag[0] = 1


stop_flag = np.zeros(1)
if len(sys.argv) == 1:
    begin(1_000_000, stop_flag)
without_gil(1, np.ones(1))
threading.Thread(target=wait_for_file, args=(sys.argv[1], stop_flag), daemon=True).start()
print("pid", os.getpid(), flush=True)
print("ready", flush=True)
without_gil(1_000_000, stop_flag)
deadline = time.monotonic() + 1
while time.monotonic() < deadline:
    sum(range(1000))
print("back in Python")
