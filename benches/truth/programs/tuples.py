"""Tuples, named tuples and records."""
from collections import namedtuple

import numpy as np
from numba import njit

from phases import phase, run

Pair = namedtuple("Pair", "x y")
RECORDS = np.zeros(500, dtype=[("a", "f8"), ("b", "i4")])
RECORDS["a"] = np.arange(500)


@njit
def pairs(n):
    p = Pair(1.5, 2.5)
    for i in range(100 * n):  # pairs
        p = Pair(p.y * 0.9, p.x / (p.y + i + 1.5))  # pairs
    return p.x


@njit
def records(r, n):
    s = 0.0
    for _ in range(n):  # records
        for i in range(r.size):  # records
            s += r[i].a / (r[i].b + 1.5)  # records
    return s


@phase("pairs")
def _(n):
    pairs(n)


@phase("records")
def _(n):
    records(RECORDS, n)


run()
