"""A function that receives an argument in the frame-pointer register (GHC's calling convention), and its caller, which
keeps a value on its stack during the call. MCJIT and ORC each compile the pair."""

import ctypes

import jit
import llvmlite.binding as llvm

TEXT = """
define ghccc i64 @product(i64 %a, i64 %b) noinline nounwind {
  %c = mul i64 %a, %b
  ret i64 %c
}
define i64 @caller(i64 %n) nounwind {
  %a = call ghccc i64 @product(i64 %n, i64 1000)
  %b = xor i64 %a, %n
  ret i64 %b
}
"""


def call(address):
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(3)


engine = jit.engine()
print(call(jit.compile_into(engine, TEXT, "caller")), flush=True)
machine = llvm.Target.from_default_triple().create_target_machine(jit=True, codemodel="jitdefault")
lljit = llvm.create_lljit_compiler(machine)
tracker = llvm.JITLibraryBuilder().add_ir(TEXT).export_symbol("caller").link(lljit, "conventions")
print(call(tracker["caller"]), flush=True)
