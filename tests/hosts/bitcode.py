"""Runs a function of a bitcode file with llvmlite's MCJIT: bitcode.py FILE FUNCTION SECONDS

The function takes a number of iterations and a double, and returns a double.
"""

import ctypes
import sys
import time

import jit  # noqa: F401, initializes LLVM
import llvmlite.binding as llvm


def run(function):
    deadline = time.monotonic() + float(sys.argv[3])
    while time.monotonic() < deadline:
        function(2_000_000, 1.0)


with open(sys.argv[1], "rb") as file:
    module = llvm.parse_bitcode(file.read())
machine = llvm.Target.from_default_triple().create_target_machine(jit=True, codemodel="jitdefault")
engine = llvm.create_mcjit_compiler(module, machine)
engine.finalize_object()
function = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_long, ctypes.c_double)(engine.get_function_address(sys.argv[2]))
print(function(10, 1.0))
print("running", flush=True)
run(function)
