"""Changes code pages without loading a new object, through LLVM's own functions: changing.py libLLVM.so

Prints one line per step: the file that backs the page of `f`, and the return value of `f`.
"""

import ctypes
import mmap
import os
import sys

from where import backing_file, count_mappings

READ, WRITE, EXECUTE = 0x1000000, 0x2000000, 0x4000000
LLVM = ctypes.CDLL(sys.argv[1])
PAGE = mmap.PAGESIZE
pointer = ctypes.c_void_p


class MemoryBlock(ctypes.Structure):
    """`llvm::sys::MemoryBlock`"""

    _fields_ = [("address", pointer), ("size", ctypes.c_size_t), ("flags", ctypes.c_uint)]


def protect(address, flags):
    function = LLVM["_ZN4llvm3sys6Memory19protectMappedMemoryERKNS0_11MemoryBlockEj"]
    block = MemoryBlock(address, PAGE, 0)
    function(ctypes.byref(block), ctypes.c_uint(flags))


def call(name, *arguments, result=pointer):
    function = LLVM[name]
    function.restype = result
    return function(*arguments)


def module(name, result):
    text = f"define i32 @{name}() {{ ret i32 {result} }}".encode()
    # The parser takes ownership of the buffer.
    buffer = call("LLVMCreateMemoryBufferWithMemoryRangeCopy", text, ctypes.c_size_t(len(text)), b"")
    parsed, error = pointer(), pointer()
    context = pointer(call("LLVMGetGlobalContext"))
    references = ctypes.byref(parsed), ctypes.byref(error)
    if call("LLVMParseIRInContext", context, pointer(buffer), *references, result=ctypes.c_int) != 0:
        raise SystemExit("the module is not understood")
    return parsed


architecture = {"x86_64": "X86", "aarch64": "AArch64"}[os.uname().machine]
for part in ("TargetInfo", "Target", "TargetMC", "AsmPrinter"):
    call(f"LLVMInitialize{architecture}{part}")
call("LLVMLinkInMCJIT")


def create_engine(module):
    engine, error = pointer(), pointer()
    references = ctypes.byref(engine), module, ctypes.c_uint(0), ctypes.byref(error)
    if call("LLVMCreateJITCompilerForModule", *references, result=ctypes.c_int) != 0:
        raise SystemExit("no engine")
    return engine


def function_address(engine, name):
    return call("LLVMGetFunctionAddress", engine, name.encode(), result=ctypes.c_uint64)


def report(step, address, should_call=True):
    file = "image" if backing_file(address).endswith(".so") else backing_file(address)
    result = ctypes.CFUNCTYPE(ctypes.c_int32)(address)() if should_call else "not called"
    print(f"{step}: {file}, {result}", flush=True)


engine = create_engine(module("f", 42))
address = function_address(engine, "f")
page = address // PAGE * PAGE
report("final", address)
protect(page, READ | WRITE)
report("writable", address, should_call=False)
protect(page, READ | EXECUTE)
report("executable again", address)
protect(page, READ | WRITE)
# mov eax, 7; ret on x86_64, and its AArch64 equivalent
return_7 = {"X86": b"\xb8\x07\x00\x00\x00\xc3", "AArch64": b"\xe0\x00\x80\x52\xc0\x03\x5f\xd6"}[architecture]
ctypes.memmove(address, return_7, len(return_7))
protect(page, READ | EXECUTE)
report("other code", address)
call("LLVMAddModule", engine, module("g", 43))
report("another object", function_address(engine, "g"))
call("LLVMDisposeExecutionEngine", engine, result=None)

engine = create_engine(module("f", 42))
address = function_address(engine, "f")
report("final once more", address)
protect(address // PAGE * PAGE, READ | WRITE | EXECUTE)
report("writable and executable", address)
call("LLVMDisposeExecutionEngine", engine, result=None)
with open("/proc/self/maps") as maps:
    print("images left:", sum(line.rstrip().endswith(".so") and "/object-" in line for line in maps))

# The earlier engines have filled LLVM's own caches, so their mappings no longer change.
mappings_before = count_mappings()
for _ in range(100):
    engine = create_engine(module("f", 42))
    function_address(engine, "f")
    call("LLVMDisposeExecutionEngine", engine, result=None)
print("more mappings:", count_mappings() - mappings_before)
