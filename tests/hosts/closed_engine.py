"""Closes an engine while other engines live: closed_engine.py SECONDS

Creates and closes engines until new code lands at the address of a closed engine, then runs the new code. A tool that
still uses the stale name reports `outdated`. Prints to standard error whether the address was reused.
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


def create_engine(name, term):
    module = llvm.parse_assembly(IR.format(name=name, term=term))
    engine = llvm.create_mcjit_compiler(module, llvm.Target.from_default_triple().create_target_machine(jit=True))
    if "CLOSED_ENGINE_JIT_EVENTS" in os.environ:
        engine.enable_jit_events()
    engine.finalize_object()
    address = engine.get_function_address(name)
    call = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64, ctypes.c_double)(address)
    return engine, address, call


try:
    llvm.initialize()
except RuntimeError:
    pass  # deprecated since llvmlite 0.45, where it raises
llvm.initialize_native_target()
llvm.initialize_native_asmprinter()

engine, _, survivor = create_engine("survivor", "0.5")
print(survivor(10, 1.0))

closed_addresses = set()
for _ in range(8):
    temporary, address, call = create_engine("outdated", "0.25")
    print(call(10, 1.0))
    temporary.close()
    closed_addresses.add(address)

current, address, call = create_engine("current", "0.75")
print("reused" if address in closed_addresses else "fresh", file=sys.stderr)
print(call(10, 1.0))
print("running", flush=True)
deadline = time.process_time() + float(sys.argv[1])
while time.process_time() < deadline:
    call(LOOP, 1.0)
    survivor(LOOP // 2, 1.0)
print(survivor(10, 1.0))
