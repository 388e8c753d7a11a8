"""Creates and destroys llvmlite contexts, then triggers an LLVM error that ends the process."""

import sys

import llvmlite.binding as llvm

for initialize in (llvm.initialize_native_target, llvm.initialize_native_asmprinter, llvm.initialize_native_asmparser):
    try:
        initialize()
    except RuntimeError:  # newer releases initialize themselves
        pass


def compile_module(source, context):
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(source, context), machine)
    engine.finalize_object()
    return engine


for _ in range(3):
    context = llvm.create_context()
    engine = compile_module("define i32 @f() {\n  ret i32 0\n}", context)
    del engine, context
print("compiled", flush=True)
compile_module(
    'define i32 @f() {\n  call void asm sideeffect "bogus %eax", ""()\n  ret i32 0\n}',
    llvm.context.get_global_context(),
)
sys.exit("no error")
