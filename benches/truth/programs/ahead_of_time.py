"""Code compiled ahead of time has no lines of its own; its time is attributed to the lines that call it."""
import os
import sys
import warnings

from numba.core.errors import NumbaPendingDeprecationWarning

from phases import phase, run

warnings.simplefilter("ignore", NumbaPendingDeprecationWarning)
from numba.pycc import CC

DIRECTORY = os.environ["NUMBA_CACHE_DIR"]
extension = CC("ahead_of_time_extension")
extension.output_dir = DIRECTORY


@extension.export("divided", "float64(int64)")
def divided(n):
    x = 1.5
    for _ in range(1000 * n):
        x = x * 0.999 + 1.5 / (x + 2.5)
    return x


@extension.export("hypotenuse", "float64(float64[::1], int64)")
def hypotenuse(a, n):
    s = 0.0
    for _ in range(n):
        for i in range(a.size):
            s += (a[i] * a[i] + 1.5) ** 0.5
    return s


extension.compile()
sys.path.insert(0, DIRECTORY)
import ahead_of_time_extension
import numpy as np

A = np.random.default_rng(0).random(3000)


@phase("divided")
def _(n):
    ahead_of_time_extension.divided(n)  # divided


@phase("hypotenuse")
def _(n):
    ahead_of_time_extension.hypotenuse(A, n)  # hypotenuse


run()
