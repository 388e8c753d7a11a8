"""Many small objects, each finalized on its own.

    many.py COUNT

Prints how many mappings the objects use, and how many functions return the right value.
"""

import ctypes
import sys

import jit
from where import count_mappings

COUNT = int(sys.argv[1])
engine = jit.engine()
SOURCE = "define i64 @f{0}(i64 %a, i64 %b) {{ %c = add i64 %a, %b\n %d = add i64 %c, {0}\n ret i64 %d }}"
mappings_before = count_mappings()
addresses = []
for number in range(COUNT):
    addresses.append(jit.compile_into(engine, SOURCE.format(number), f"f{number}"))
prototype = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
print("right:", sum(prototype(address)(1, 2) == 3 + number for number, address in enumerate(addresses)))
print("mappings:", count_mappings() - mappings_before)
