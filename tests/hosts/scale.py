"""Compiles many functions at a time: scale.py OBJECTS FUNCTIONS

Compiles OBJECTS objects of FUNCTIONS functions each and keeps all of them. Prints per tenth of the objects the CPU time
in microseconds and the memory in bytes that one object took; then the number of mappings of the process.
"""

import ctypes
import json
import sys
import time

import jit
import llvmlite.binding as llvm
from where import count_mappings

OBJECTS, FUNCTIONS = int(sys.argv[1]), int(sys.argv[2])
prototype = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def object_source(number):
    body = "define i64 @f{0}_{1}(i64 %a) {{ %b = add i64 %a, {0}\n %c = mul i64 %b, {1}\n ret i64 %c }}"
    return "\n".join(body.format(number, function) for function in range(FUNCTIONS))


engine = jit.engine()
microseconds_by_tenth, bytes_by_tenth, wrong_results = [], [], 0
initial_resident = resident_bytes()
for tenth in range(10):
    sources = [object_source(number) for number in range(OBJECTS * tenth // 10, OBJECTS * (tenth + 1) // 10)]
    resident_before = resident_bytes()
    modules = [llvm.parse_assembly(text) for text in sources]
    started = time.process_time()
    for module in modules:
        engine.add_module(module)
        engine.finalize_object()
    microseconds_by_tenth.append(round((time.process_time() - started) / max(1, len(sources)) * 1e6, 1))
    bytes_by_tenth.append((resident_bytes() - resident_before) // max(1, len(sources)))
for number in range(0, OBJECTS, max(1, OBJECTS // 100)):
    address = engine.get_function_address(f"f{number}_{FUNCTIONS - 1}")
    wrong_results += prototype(address)(2) != (2 + number) * (FUNCTIONS - 1)
per_object = (resident_bytes() - initial_resident) // OBJECTS
report = {
    "wrong": wrong_results,
    "tenths": microseconds_by_tenth,
    "bytes": bytes_by_tenth,
    "per_object": per_object,
    "mappings": count_mappings(),
}
print(json.dumps(report))
