"""Compiles functions, opens libraries in between, and prints the memory map of the process."""

import warnings

warnings.filterwarnings("ignore")

import numba


@numba.njit
def first(x):
    return x + 1


@numba.njit
def second(x):
    return first(x) * 2.5


first(1)
second(1.0)

import decimal  # noqa: E402, F401  (opens libraries)
import sqlite3  # noqa: E402, F401


@numba.njit
def third(x):
    return second(x) * 3


third(2)
print(open("/proc/self/maps").read())
