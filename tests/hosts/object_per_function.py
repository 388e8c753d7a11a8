"""The chain alpha -> beta -> gamma as one object per function, with llvmlite alone: object_per_function.py SECONDS"""

import ctypes
import sys
import time

import jit

GAMMA = """
define double @gamma(i64 %n, double %x) {
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %a = phi double [%x, %entry], [%c, %loop]
  %b = fadd double %a, 1.0
  %c = fdiv double %b, 1.25
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %out
out:
  ret double %c
}
"""
# Many very short calls, and a division as slow as gamma's, so that perf also samples the caller.
BETA = """
declare double @gamma(i64, double)
define double @beta(i64 %n, double %x) {
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %a = phi double [%x, %entry], [%b, %loop]
  %t = call double @gamma(i64 1, double %a)
  %b = fdiv double %t, 1.5
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %out
out:
  ret double %b
}
"""
ALPHA = """
declare double @beta(i64, double)
define double @alpha(i64 %n, double %x) {
  %a = call double @beta(i64 %n, double %x)
  %b = fadd double %a, 1.0
  ret double %b
}
"""

engine = jit.engine()
for name, text in (("gamma", GAMMA), ("beta", BETA), ("alpha", ALPHA)):
    address = jit.compile_into(engine, text, name)
prototype = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64, ctypes.c_double)
alpha = prototype(address)
print(alpha(10, 1.0))
deadline = time.process_time() + float(sys.argv[1])
while time.process_time() < deadline:
    alpha(300_000, 1.0)
