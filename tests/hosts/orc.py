"""llvmlite's ORC entry points, with IR that does not request frame pointers: orc.py SECONDS (rtdyld|jitlink)

Prints the first bytes of gamma to standard error, where a test looks for the prologue.
"""

import ctypes
import os
import sys
import time

import jit  # noqa: F401, initializes LLVM
import llvmlite.binding as llvm

LOOP = 2_000_000

with open(os.path.join(os.path.dirname(__file__), "chain.ll")) as file:
    ir = file.read()
machine = llvm.Target.from_default_triple().create_target_machine(jit=True, codemodel="jitdefault")
lljit = llvm.create_lljit_compiler(machine, use_jit_link=sys.argv[2] == "jitlink")
tracker = llvm.JITLibraryBuilder().add_ir(ir).export_symbol("alpha").export_symbol("gamma").link(lljit, "chain")
alpha = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64, ctypes.c_double)(tracker["alpha"])
print(alpha(10, 1.0))
print(ctypes.string_at(tracker["gamma"], 32).hex(), file=sys.stderr)
print("running", flush=True)
deadline = time.process_time() + float(sys.argv[1])
while time.process_time() < deadline:
    alpha(LOOP, 1.0)
