"""Compiles one function after another and prints the sum of their results: many_functions.py COUNT [MARK]

With MARK, prints it after the first function and waits for a line on standard input.
"""

import math
import sys

from numba import njit

SOURCE = """
def function_{index}(x):
    return math.erf(x) + {index}
"""
total = 0.0
for index in range(int(sys.argv[1])):
    scope = {"math": math}
    exec(SOURCE.format(index=index), scope)
    total += njit(scope[f"function_{index}"])(1.0)
    if index == 0 and len(sys.argv) > 2:
        print(sys.argv[2], flush=True)
        sys.stdin.readline()
print(total)
