"""Compiles one function after the other and prints what they return: many_functions.py COUNT [MARK]

After the first function, waits for a line on standard input if there is a second word, and prints that word before.
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
