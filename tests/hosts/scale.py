"""Many functions at once: scale.py OBJECTS FUNCTIONS

Compiles OBJECTS objects of FUNCTIONS functions each, all of which stay. Says how much processor time an object took in
each tenth of them, in microseconds, how many bytes of memory the process had more for it, and how many mappings it has
in all.
"""

import ctypes
import json
import sys
import time

import llvmlite.binding as llvm

import jit
from where import mappings

OBJECTS, FUNCTIONS = int(sys.argv[1]), int(sys.argv[2])
kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def source(number):
    body = "define i64 @f{0}_{1}(i64 %a) {{ %b = add i64 %a, {0}\n %c = mul i64 %b, {1}\n ret i64 %c }}"
    return "\n".join(body.format(number, function) for function in range(FUNCTIONS))


engine = jit.engine()
tenths, bytes_each, wrong = [], [], 0
begun_with = resident()
for tenth in range(10):
    sources = [source(number) for number in range(OBJECTS * tenth // 10, OBJECTS * (tenth + 1) // 10)]
    before = resident()
    modules = [llvm.parse_assembly(text) for text in sources]
    begun = time.process_time()
    for module in modules:
        engine.add_module(module)
        engine.finalize_object()
    tenths.append(round((time.process_time() - begun) / max(1, len(sources)) * 1e6, 1))
    bytes_each.append((resident() - before) // max(1, len(sources)))
for number in range(0, OBJECTS, max(1, OBJECTS // 100)):
    address = engine.get_function_address(f"f{number}_{FUNCTIONS - 1}")
    wrong += kind(address)(2) != (2 + number) * (FUNCTIONS - 1)
per_object = (resident() - begun_with) // OBJECTS
said = {"wrong": wrong, "tenths": tenths, "bytes": bytes_each, "per_object": per_object, "mappings": mappings()}
print(json.dumps(said))
