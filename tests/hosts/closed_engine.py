"""An engine closed while others live: closed_engine.py SECONDS

Makes and closes engines until new code lands where a closed engine's code was, then runs the new code. Whoever still
believes in the old name says `outdated`. Says on standard error whether the address was used again.
"""

import ctypes
import os
import sys
import time

import llvmlite.binding as llvm

LOOP = 2_000_000
IR = """
define double @{name}(i64 %n, double %x) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %a = phi double [ %x, %entry ], [ %d, %loop ]
  %b = fdiv double 1.0, %a
  %d = fadd double %b, {term}
  %next = add i64 %i, 1
  %done = icmp uge i64 %next, %n
  br i1 %done, label %out, label %loop
out:
  ret double %d
}}
"""


def engine(name, term):
    module = llvm.parse_assembly(IR.format(name=name, term=term))
    made = llvm.create_mcjit_compiler(module, llvm.Target.from_default_triple().create_target_machine(jit=True))
    if "CLOSED_ENGINE_JIT_EVENTS" in os.environ:
        made.enable_jit_events()
    made.finalize_object()
    address = made.get_function_address(name)
    call = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64, ctypes.c_double)(address)
    return made, address, call


try:
    llvm.initialize()
except RuntimeError:
    pass  # not needed any more since llvmlite 0.45
llvm.initialize_native_target()
llvm.initialize_native_asmprinter()

living, _, survivor = engine("survivor", "0.5")
print(survivor(10, 1.0))

closed = set()
for _ in range(8):
    made, address, call = engine("outdated", "0.25")
    print(call(10, 1.0))
    made.close()
    closed.add(address)

current, address, call = engine("current", "0.75")
print("reused" if address in closed else "fresh", file=sys.stderr)
print(call(10, 1.0))
print("running", flush=True)
until = time.process_time() + float(sys.argv[1])
while time.process_time() < until:
    call(LOOP, 1.0)
    survivor(LOOP // 2, 1.0)
print(survivor(10, 1.0))
