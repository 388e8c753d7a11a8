"""Compiles one function after another until it is killed, and prints a line for each."""

import itertools

from numba import njit

for index in itertools.count():
    scope = {}
    exec(f"def function_{index}(x):\n    return x + {index}", scope)
    njit(scope[f"function_{index}"])(1)
    print(f"compiled {index}", flush=True)
