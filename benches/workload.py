"""A fixed workload for a profiler: compiles eight Numba functions and runs them for a second or two.

Prints the PID and the results.
"""

import os

import numpy as np
from numba import njit

SOURCE = """
def summed_{0}(values, rounds):
    total = 0.0
    for _ in range(rounds):
        for i in range(1, values.size):
            total += values[i] * values[i - 1] + {0}.5
            if total > 1e9:
                total *= 0.5
    return total
"""

print(os.getpid())
scope = {}
for number in range(8):
    exec(SOURCE.format(number), scope)
functions = [njit(scope[f"summed_{number}"]) for number in range(8)]
values = np.linspace(0.0, 1.0, 10_000)
print([function(values, 10) for function in functions])
print([function(values, 4_000) for function in functions])
