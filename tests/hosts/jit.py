"""llvmlite without Numba: initializes LLVM, and creates MCJIT engines from LLVM assembly."""

import llvmlite.binding as llvm

try:
    llvm.initialize()
except RuntimeError:
    pass  # deprecated since llvmlite 0.45, where it raises
llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
_target = llvm.Target.from_default_triple()


def engine(text="", **options):
    """Creates an engine for this module, which is compiled on first use."""
    return llvm.create_mcjit_compiler(llvm.parse_assembly(text), _target.create_target_machine(), **options)


def compile_into(engine, text, name):
    """Compiles the text as a separate object and returns the address of a function in it."""
    engine.add_module(llvm.parse_assembly(text))
    engine.finalize_object()
    return engine.get_function_address(name)
