"""A call chain with frame pointers and without unwind tables, sampled inside the process by walker.c.

    no_tables.py WALKER_LIBRARY SECONDS

Requires JITLISTEN_FRAME_POINTERS=untouched, because unwind tables are added otherwise. Prints one line per unwinder to
standard error: its name, the number of samples in compiled code, the number of those walks that reached the program's
entry point, and the number of compiled frames in the first complete walk.
"""

import ctypes
import sys
import time

import jit

walker = ctypes.CDLL(sys.argv[1])
seconds = float(sys.argv[2])

# The chain consists of a leaf that saves a register before it sets up its frame record, a caller with a large frame,
# and a plain caller.
SOURCE = """
define double @gamma(i64 %n, double %x) #0 {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %y = phi double [ %x, %entry ], [ %w, %loop ]
  %z = fmul double %y, 0x3FEFF7CED916872B
  call void asm sideeffect "", "~{x19},~{x20},~{d8}"()
  %w = fadd double %z, 1.0
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret double %w
}
define double @beta(i64 %n, double %x) #0 {
  %space = alloca [100 x i64]
  call void asm sideeffect "", "r"(ptr %space)
  %y = call double @gamma(i64 %n, double %x)
  %z = fadd double %y, 1.0
  ret double %z
}
define double @alpha(i64 %n, double %x) #0 {
  %y = call double @beta(i64 %n, double %x)
  %z = fadd double %y, 1.0
  ret double %z
}
attributes #0 = { noinline nounwind "frame-pointer"="all" }
"""


def anonymous_code():
    with open("/proc/self/maps") as maps:
        for fields in map(str.split, maps):
            if "x" in fields[1] and len(fields) < 6:
                low, high = fields[0].split("-")
                yield range(int(low, 16), int(high, 16))


engine = jit.engine()
address = jit.compile_into(engine, SOURCE, "alpha")
alpha = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64, ctypes.c_double)(address)
code_ranges = [code_range for code_range in anonymous_code() if address in code_range]
bounds = (ctypes.c_size_t * 2)(code_ranges[0].start, code_ranges[0].stop)
for number, name in enumerate(["libunwind", "libgcc"]):
    assert walker.walk_start(number, bounds, 1) == 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline or (walker.walk_taken() < 100 and time.monotonic() < deadline + 60):
        alpha(1_000_000, 1.0)
    samples, complete_walks = walker.walk_stop(), walker.walk_complete()
    frames = (ctypes.c_size_t * 256)()
    stack = frames[: walker.walk_stack(frames, 256)]
    print(name, samples, complete_walks, sum(ip in code_ranges[0] for ip in stack), file=sys.stderr)
