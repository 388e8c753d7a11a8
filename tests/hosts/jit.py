"""llvmlite without Numba: initialized, with MCJIT engines for text."""

import llvmlite.binding as llvm

try:
    llvm.initialize()
except RuntimeError:
    pass  # not needed any more since llvmlite 0.45
llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
_target = llvm.Target.from_default_triple()


def engine(text="", **manager):
    """An engine that has this module, compiled when it is asked for."""
    return llvm.create_mcjit_compiler(llvm.parse_assembly(text), _target.create_target_machine(), **manager)


def compile_into(engine, text, name):
    """The address of a function in a module that becomes an object of its own."""
    engine.add_module(llvm.parse_assembly(text))
    engine.finalize_object()
    return engine.get_function_address(name)
