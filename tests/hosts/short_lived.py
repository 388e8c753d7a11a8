"""Functions that are compiled, used and deleted repeatedly, and one that stays: short_lived.py SECONDS"""

import gc
import sys
import time

from numba import njit

LOOP = 2_000_000
SOURCE = """
def {name}(n, x):
    for _ in range(n):
        x = x * 0.999 + 1.0 / (x * x + {term})
    return x
"""


def compile_function(name, term):
    scope = {}
    exec(SOURCE.format(name=name, term=term), scope)
    return njit(scope[name])


for turn in range(12):
    temporary = compile_function(f"mayfly{turn}", turn + 1)
    print(temporary(10, 1.0))
    del temporary
    gc.collect()

last = compile_function("evergreen", 1)
print(last(10, 1.0))
print("running", flush=True)
deadline = time.process_time() + float(sys.argv[1])
while time.process_time() < deadline:
    last(LOOP, 1.0)
