"""guvectorize and vectorize."""
import math

import numpy as np
from numba import guvectorize, vectorize

from phases import phase, run

X = np.random.default_rng(0).random((400, 300))


@guvectorize(["void(f8[:], f8[:])"], "(n)->(n)")
def moving(a, out):
    s = 0.0
    for i in range(a.size):  # moving
        s = s * 0.9 + a[i] / (s + 1.5)  # moving
        out[i] = s  # moving


@vectorize
def lazy(a, b):
    return math.exp(-a) * math.cos(b)  # lazy


@vectorize(["f8(f8)"])
def eager(a):
    return a * 0.5 + 1.0 / (a * a + math.sqrt(a) + 1.5)  # eager


@vectorize(["f8(f8)"])
def root(a):
    return math.sqrt(a) / (a * a + 1.0)  # root


@phase("moving")
def _(n):
    for _ in range(n):
        moving(X)


@phase("lazy")
def _(n):
    for _ in range(n):
        lazy(X, X)


@phase("eager")
def _(n):
    for _ in range(n):
        eager(X)


@phase("root")
def _(n):
    for _ in range(n):
        root(X)


run()
