"""The chain of chain.py, watched from inside by walker.c.

    walked.py WALKER_LIBRARY SECONDS early|late [cache]

`early`  the walker, and the unwinder it brings, is loaded before anything is compiled
`late`   after
`cache`  compile with cache=True

Prints the result to standard output. To standard error, two lines for each unwinder: its name, the samples taken in
compiled code, how many of those walks reached the start of the program, how many frames of the first of them are
compiled code; then what libunwind calls these frames.
"""

import ctypes
import sys
import time

library, seconds, when = sys.argv[1], float(sys.argv[2]), sys.argv[3]
if when == "early":
    walker = ctypes.CDLL(library)

from chain import beta


def is_jit(fields):
    """A line of /proc/self/maps about code: without a name, or with that of an image of ours."""
    return "x" in fields[1] and (len(fields) < 6 or "/image-" in fields[5])


def jit_code():
    with open("/proc/self/maps") as maps:
        for fields in map(str.split, maps):
            if is_jit(fields):
                low, high = fields[0].split("-")
                yield range(int(low, 16), int(high, 16))


print(beta(10, 1.0))
if when == "late":
    walker = ctypes.CDLL(library)
walker.walk_name.restype = ctypes.c_char_p
walker.walk_name.argtypes = [ctypes.c_void_p]
code = list(jit_code())
bounds = [bound for part in code for bound in (part.start, part.stop)]
pairs = (ctypes.c_size_t * len(bounds))(*bounds)
for number, name in enumerate(["libunwind", "libgcc"]):
    assert walker.walk_start(number, pairs, len(code)) == 0
    until = time.monotonic() + seconds
    # On a busy machine a second is not much.
    while time.monotonic() < until or (walker.walk_taken() < 100 and time.monotonic() < until + 20):
        result = beta(2_000_000, 1.0)
    samples, complete = walker.walk_stop(), walker.walk_complete()
    frames = (ctypes.c_size_t * 256)()
    stack = frames[: walker.walk_stack(frames, 256)]
    compiled = [ip for ip in stack if any(ip in part for part in code)]
    print(name, samples, complete, len(compiled), file=sys.stderr)
    print(*(walker.walk_name(ip).decode() for ip in compiled), sep=" ", file=sys.stderr)
print(result)
