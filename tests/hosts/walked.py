"""The call chain of chain.py, sampled inside the process by walker.c.

    walked.py WALKER_LIBRARY SECONDS early|late [cache]

`early`  load the walker, and with it the unwinder, before anything is compiled
`late`   load it afterwards
`cache`  compile with cache=True

Prints the result to standard output, and two lines per unwinder to standard error. First: its name, the number of
samples in compiled code, the number of those walks that reached the program's entry point, and the number of compiled
frames in the first complete walk. Second: libunwind's names of those frames.
"""

import ctypes
import sys
import time

library, seconds, load_time = sys.argv[1], float(sys.argv[2]), sys.argv[3]
if load_time == "early":
    walker = ctypes.CDLL(library)

from chain import beta


def is_jit(fields):
    """True if a line of /proc/self/maps is JIT code: an executable mapping without a name, or one of our images."""
    return "x" in fields[1] and (len(fields) < 6 or "/image-" in fields[5])


def jit_code():
    with open("/proc/self/maps") as maps:
        for fields in map(str.split, maps):
            if is_jit(fields):
                low, high = fields[0].split("-")
                yield range(int(low, 16), int(high, 16))


print(beta(10, 1.0))
if load_time == "late":
    walker = ctypes.CDLL(library)
walker.walk_name.restype = ctypes.c_char_p
walker.walk_name.argtypes = [ctypes.c_void_p]
code_ranges = list(jit_code())
bounds = [bound for code_range in code_ranges for bound in (code_range.start, code_range.stop)]
bounds_array = (ctypes.c_size_t * len(bounds))(*bounds)
for number, name in enumerate(["libunwind", "libgcc"]):
    assert walker.walk_start(number, bounds_array, len(code_ranges)) == 0
    deadline = time.monotonic() + seconds
    # A busy machine needs longer than SECONDS for 100 samples.
    while time.monotonic() < deadline or (walker.walk_taken() < 100 and time.monotonic() < deadline + 20):
        result = beta(2_000_000, 1.0)
    samples, complete_walks = walker.walk_stop(), walker.walk_complete()
    frames = (ctypes.c_size_t * 256)()
    stack = frames[: walker.walk_stack(frames, 256)]
    compiled = [ip for ip in stack if any(ip in code_range for code_range in code_ranges)]
    print(name, samples, complete_walks, len(compiled), file=sys.stderr)
    print(*(walker.walk_name(ip).decode() for ip in compiled), sep=" ", file=sys.stderr)
print(result)
