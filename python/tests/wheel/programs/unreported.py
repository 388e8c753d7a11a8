"""Loads LLVM, which compiles nothing, and runs machine code that nobody reports; with ``work``, for two seconds of CPU
time, otherwise forever.
"""

import ctypes
import mmap
import sys
import time

import llvmlite.binding

assert llvmlite.binding.llvm_version_info

# mov ecx, 50000000; 1: dec ecx; jnz 1b; ret
CODE = b"\xb9\x80\xf0\xfa\x02\xff\xc9\x75\xfc\xc3"

memory = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.write(CODE)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
libc = ctypes.CDLL(None)
assert libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ | mmap.PROT_EXEC) == 0
run = ctypes.CFUNCTYPE(None)(address)
print("ready", flush=True)
start = time.process_time()
while "work" not in sys.argv or time.process_time() - start < 2:
    run()
