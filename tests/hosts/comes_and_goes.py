"""A service that compiles, calls and frees for ever: comes_and_goes.py WARM TURNS

Says what the process has after WARM turns and after TURNS, one JSON object a line: resident memory and the size of the perf
map and of all files under JITLISTEN_DIR, in bytes, and the number of mappings. Names are long, so that files fill fast.
"""

import ctypes
import gc
import json
import os
import sys

import llvmlite.binding as llvm

WARM, TURNS = int(sys.argv[1]), int(sys.argv[2])
PADDING = "a_name_of_some_length_" * 18
SOURCE = "".join(
    f"define i64 @f{number}_{PADDING}_{{0}}(i64 %a) {{{{ %b = add i64 %a, {number}\n ret i64 %b }}}}\n" for number in range(3)
)

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
target = llvm.Target.from_default_triple()
libc = ctypes.CDLL(None)
kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


def turn(number):
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(SOURCE.format(number)), target.create_target_machine())
    engine.finalize_object()
    address = engine.get_function_address(f"f2_{PADDING}_{number}")
    assert kind(address)(number) == number + 2
    engine.close()


def files(directory):
    sizes = 0
    for path, _, names in os.walk(directory):
        sizes += sum(os.lstat(os.path.join(path, name)).st_size for name in names if name != "stdout")
    return sizes


def says(what):
    gc.collect()
    libc.malloc_trim(0)
    with open("/proc/self/statm") as statm:
        resident = int(statm.read().split()[1]) * 4096
    with open("/proc/self/maps") as maps:
        mappings = sum(1 for _ in maps)
    path = f"/tmp/perf-{os.getpid()}.map"
    perf_map = os.path.getsize(path) if os.path.exists(path) else 0
    said = {"resident": resident, "mappings": mappings, "perf_map": perf_map, "files": files(os.environ["JITLISTEN_DIR"])}
    print(json.dumps(said), flush=True)


for number in range(TURNS):
    if number == WARM:
        says("warm")
    turn(number)
says("end")
