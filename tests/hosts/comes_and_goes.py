"""A service that compiles, calls and frees functions forever: comes_and_goes.py WARM TURNS

Prints the resource usage of the process after WARM iterations and again after TURNS, as one JSON object per line: the
resident memory, the size of the perf map, and the size of all files under JITLISTEN_DIR, in bytes, and the number of
mappings. Function names are long so that the files fill quickly.
"""

import ctypes
import gc
import json
import os
import sys

import jit
from where import count_mappings

WARM, TURNS = int(sys.argv[1]), int(sys.argv[2])
PADDING = "a_name_of_some_length_" * 18
SOURCE = "".join(
    f"define i64 @f{number}_{PADDING}_{{0}}(i64 %a) {{{{ %b = add i64 %a, {number}\n ret i64 %b }}}}\n"
    for number in range(3)
)

libc = ctypes.CDLL(None)
prototype = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


def run_turn(number):
    engine = jit.engine(SOURCE.format(number))
    engine.finalize_object()
    address = engine.get_function_address(f"f2_{PADDING}_{number}")
    assert prototype(address)(number) == number + 2
    engine.close()


def directory_bytes(directory):
    total_bytes = 0
    for path, _, names in os.walk(directory):
        total_bytes += sum(os.lstat(os.path.join(path, name)).st_size for name in names if name != "stdout")
    return total_bytes


def print_usage(label):
    gc.collect()
    libc.malloc_trim(0)
    with open("/proc/self/statm") as statm:
        resident = int(statm.read().split()[1]) * 4096
    path = f"/tmp/perf-{os.getpid()}.map"
    perf_map = os.path.getsize(path) if os.path.exists(path) else 0
    usage = {
        "resident": resident,
        "mappings": count_mappings(),
        "perf_map": perf_map,
        "files": directory_bytes(os.environ["JITLISTEN_DIR"]),
    }
    print(json.dumps(usage), flush=True)


for number in range(TURNS):
    if number == WARM:
        print_usage("warm")
    run_turn(number)
print_usage("end")
