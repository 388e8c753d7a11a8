"""One function compiled for several types."""
import numpy as np
from numba import njit

from phases import phase, run


@njit
def scale(a, n):
    s = a[0]
    for _ in range(n):  # scaled
        for i in range(a.size):  # scaled
            s = s * a[i] / (s + a[i] + a[0])  # scaled
    return s


F, C = np.random.default_rng(0).random(500).astype(np.float32) + 1, np.ones(500, dtype=np.complex64) * 1.5


@phase("scaled")
def _(n):
    scale(F, n)
    scale(F.astype(np.float64), n)
    scale(C, n)


run()
