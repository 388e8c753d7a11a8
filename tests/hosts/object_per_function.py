"""The chain alpha -> beta -> gamma, one object each, with llvmlite alone: object_per_function.py SECONDS"""

import ctypes
import sys
import time

import llvmlite.binding as llvm

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
# Very many, very short calls, and a division as slow as gamma's, so that perf meets the caller too.
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

try:
    llvm.initialize()
except RuntimeError:
    pass  # not needed any more in new releases
llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
for text in (GAMMA, BETA, ALPHA):
    engine.add_module(llvm.parse_assembly(text))
    engine.finalize_object()
prototype = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64, ctypes.c_double)
alpha = prototype(engine.get_function_address("alpha"))
print(alpha(10, 1.0))
until = time.process_time() + float(sys.argv[1])
while time.process_time() < until:
    alpha(300_000, 1.0)
