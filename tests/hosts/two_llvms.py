"""A distribution's LLVM beside llvmlite's in one process: two_llvms.py LIBLLVM

Compiles `first` with llvmlite's LLVM, `second` with the other LLVM, and `third` with llvmlite's again. Prints their
results.
"""

import ctypes
import platform
import sys

ARCHITECTURE = {"x86_64": b"X86", "aarch64": b"AArch64"}[platform.machine()].decode()
SOURCE = "define i64 @{0}(i64 %a) {{ %b = add i64 %a, {1}\n ret i64 %b }}"
prototype = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


class Options(ctypes.Structure):
    """struct LLVMMCJITCompilerOptions of llvm-c/ExecutionEngine.h"""

    _fields_ = [(name, ctypes.c_int) for name in ("optimize", "code_model", "frame_pointers", "fast_isel")]
    _fields_ += [("memory_manager", ctypes.c_void_p)]


class Llvm:
    """An LLVM library that is called through its C API."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        for part in ("TargetInfo", "Target", "TargetMC", "AsmPrinter"):
            getattr(self.library, f"LLVMInitialize{ARCHITECTURE}{part}")()
        for name in ("ContextCreate", "CreateMemoryBufferWithMemoryRangeCopy", "GetFunctionAddress"):
            getattr(self.library, f"LLVM{name}").restype = ctypes.c_void_p

    def compile(self, name, addend):
        library, text = self.library, SOURCE.format(name, addend).encode()
        context = ctypes.c_void_p(library.LLVMContextCreate())
        buffer = ctypes.c_void_p(library.LLVMCreateMemoryBufferWithMemoryRangeCopy(text, len(text), b"source"))
        module, engine, error, options = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_char_p(), Options()
        assert not library.LLVMParseIRInContext(context, buffer, ctypes.byref(module), ctypes.byref(error)), error
        library.LLVMInitializeMCJITCompilerOptions(ctypes.byref(options), ctypes.sizeof(options))
        has_failed = library.LLVMCreateMCJITCompilerForModule(
            ctypes.byref(engine),
            module,
            ctypes.byref(options),
            ctypes.c_size_t(ctypes.sizeof(options)),
            ctypes.byref(error),
        )
        assert not has_failed, error
        address = library.LLVMGetFunctionAddress(engine, name.encode())
        print(name, prototype(address)(1))


def llvmlite_compiler():
    import llvmlite.binding as binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)

    def compile(name, addend):
        engine.add_module(binding.parse_assembly(SOURCE.format(name, addend)))
        engine.finalize_object()
        print(name, prototype(engine.get_function_address(name))(1))

    return compile


compile_with_llvmlite, other_llvm = llvmlite_compiler(), Llvm(sys.argv[1])
compile_with_llvmlite("first", 1)
other_llvm.compile("second", 2)
compile_with_llvmlite("third", 3)
