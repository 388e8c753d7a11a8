"""Stays in compiled code of its main thread, which holds the GIL: for ever."""

import os

import numba


@numba.njit
def endless(n):
    total = 0.0
    while total >= 0:
        for i in range(n):
            total += (i % 7) * 0.5
        total *= 0.5
    return total


@numba.njit
def begin(n):
    with numba.objmode():
        print("pid", os.getpid(), flush=True)
        print("ready", flush=True)
    return endless(n)


begin(1_000_000)
