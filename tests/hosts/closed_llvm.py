"""Opens and closes an LLVM library repeatedly: closed_llvm.py LIBLLVMLITE TIMES

Each iteration opens llvmlite's library directly, compiles `turn_N`, frees it and closes the library. Finally, the
program opens the library and compiles `last`, which stays. Prints each function's result and how often the library was
actually unmapped.
"""

import _ctypes
import ctypes
import sys

LIBRARY, TIMES = sys.argv[1], int(sys.argv[2])
SOURCE = "define i64 @{0}(i64 %a) {{ %b = add i64 %a, {1}\n ret i64 %b }}"
prototype = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
pointer, text = ctypes.c_void_p, ctypes.c_char_p


class Llvm:
    def __init__(self):
        self.library = ctypes.CDLL(LIBRARY)
        self.call("InitializeNativeTarget", None)
        self.call("InitializeNativeAsmPrinter", None)

    def call(self, name, result, *arguments):
        function = getattr(self.library, f"LLVMPY_{name}")
        function.restype = result
        return function(*arguments)

    def compile(self, name, addend):
        error, triple = text(), text()
        source = SOURCE.format(name, addend).encode()
        module = self.call(
            "ParseAssembly", pointer, pointer(self.call("ContextCreate", pointer)), source, ctypes.byref(error)
        )
        self.call("GetDefaultTargetTriple", None, ctypes.byref(triple))
        target = self.call("GetTargetFromTriple", pointer, triple, ctypes.byref(error))
        settings = (triple, b"", b"", 2, b"default", b"jitdefault", 0, 1, b"")
        machine = self.call("CreateTargetMachine", pointer, pointer(target), *settings)
        engine = self.call(
            "CreateMCJITCompiler", pointer, pointer(module), pointer(machine), False, ctypes.byref(error)
        )
        self.call("FinalizeObject", None, pointer(engine))
        address = self.call("GetFunctionAddress", ctypes.c_uint64, pointer(engine), name.encode())
        print(name, prototype(address)(1))
        return pointer(engine)

    def close(self):
        _ctypes.dlclose(self.library._handle)
        with open("/proc/self/maps") as maps:
            return not any("libllvmlite" in line for line in maps)


unmapped_count = 0
for number in range(TIMES):
    llvm = Llvm()
    llvm.call("DisposeExecutionEngine", None, llvm.compile(f"turn_{number}", number))
    unmapped_count += llvm.close()
print("gone", unmapped_count)
Llvm().compile("last", 9)
