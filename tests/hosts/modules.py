"""IR modules that are finalized together or one by one, with a choice of memory manager, so that objects share pages in
different ways.

    modules.py COUNT (together|apart) (LLVM|llvmlite) [waiting]

Prints how many functions return the right value, then a line "NAME FILE" per function with the file that backs its
first page. With `waiting`, waits for a line on standard input.
"""

import ctypes
import sys

import jit
import llvmlite.binding as llvm
from where import backing_file

COUNT = int(sys.argv[1])
finalize_together = sys.argv[2] == "together"
managers = {"LLVM": {}, "llvmlite": {"use_lmm": True}}

SOURCE = """
declare void @llvm.donothing()
define i64 @f{0}(i64 %a, i64 %b) {{
  %c = add i64 %a, %b
  %d = call i64 @g{0}(i64 %c)
  ret i64 %d
}}
define internal i64 @g{0}(i64 %a) noinline {{
  %d = add i64 %a, {0}
  ret i64 %d
}}
"""

engine = jit.engine(**managers[sys.argv[3]])
for number in range(COUNT):
    engine.add_module(llvm.parse_assembly(SOURCE.format(number)))
    if not finalize_together:
        engine.finalize_object()
engine.finalize_object()
addresses = {f"f{number}": engine.get_function_address(f"f{number}") for number in range(COUNT)}

prototype = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
right_count = sum(prototype(address)(1, 2) == 3 + number for number, address in enumerate(addresses.values()))
print("right:", right_count)
for name, address in addresses.items():
    print(name, backing_file(address))
sys.stdout.flush()
if sys.argv[4:]:
    print("waiting", flush=True)
    sys.stdin.readline()
