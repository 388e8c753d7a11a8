"""A chain with frame pointers and no unwind tables, watched from inside by walker.c.

    no_tables.py WALKER_LIBRARY SECONDS

Run it with JITLISTEN_FRAME_POINTERS=untouched, or the tables are put in. To standard error, one line for each unwinder:
its name, the samples taken in compiled code, how many of those walks reached the start of the program, and how many
frames of the first of them are compiled code.
"""

import ctypes
import sys
import time

import jit

walker = ctypes.CDLL(sys.argv[1])
seconds = float(sys.argv[2])

# A leaf that saves a register in front of its frame record, a caller with a large frame, and an ordinary one.
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


def code():
    with open("/proc/self/maps") as maps:
        for fields in map(str.split, maps):
            if "x" in fields[1] and len(fields) < 6:
                low, high = fields[0].split("-")
                yield range(int(low, 16), int(high, 16))


engine = jit.engine()
address = jit.compile_into(engine, SOURCE, "alpha")
alpha = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64, ctypes.c_double)(address)
ranges = [part for part in code() if address in part]
pairs = (ctypes.c_size_t * 2)(ranges[0].start, ranges[0].stop)
for number, name in enumerate(["libunwind", "libgcc"]):
    assert walker.walk_start(number, pairs, 1) == 0
    until = time.monotonic() + seconds
    while time.monotonic() < until or (walker.walk_taken() < 100 and time.monotonic() < until + 60):
        alpha(1_000_000, 1.0)
    samples, complete = walker.walk_stop(), walker.walk_complete()
    frames = (ctypes.c_size_t * 256)()
    stack = frames[: walker.walk_stack(frames, 256)]
    print(name, samples, complete, sum(ip in ranges[0] for ip in stack), file=sys.stderr)
