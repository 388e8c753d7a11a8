"""Compiles functions while the system refuses an operation: refused.py COUNT (nothing|mappings|mapping|mapping-later)

    mappings        most of vm.max_map_count is used up
    mapping         a seccomp filter refuses every executable file mapping
    mapping-later   the filter is installed after a quarter of the functions

Prints how many functions return the right value, and how many of them are mapped from an image.
"""

import ctypes
import mmap
import os
import sys

import jit
from counters import read_statistics
from where import backing_file, count_mappings

COUNT = int(sys.argv[1])
MODE = sys.argv[2]
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
PAGE = mmap.PAGESIZE


def exhaust_mappings(remaining):
    """Changes the protection of every second page of a large mapping, which costs two mappings per pair of pages."""
    with open("/proc/sys/vm/max_map_count") as file:
        limit = int(file.read())
    pairs = (limit - count_mappings() - remaining) // 2
    start = LIBC.mmap(None, 2 * pairs * PAGE, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    for pair in range(pairs):
        if LIBC.mprotect(start + 2 * pair * PAGE, PAGE, 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")


def refuse_executable_files():
    """Makes every executable file mapping fail with EACCES, like a strict SELinux policy."""
    load, equal, has_bit, verdict = 0x20, 0x15, 0x45, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000 | 13
    number, protection, file = 0, 16 + 2 * 8, 16 + 4 * 8
    mmap_number = {"x86_64": 9, "aarch64": 222}[os.uname().machine]
    program = [
        (load, 0, 0, number),
        (equal, 0, 5, mmap_number),
        (load, 0, 0, protection),
        (has_bit, 0, 3, mmap.PROT_EXEC),
        (load, 0, 0, file),
        (equal, 1, 0, 0xFFFFFFFF),
        (verdict, 0, 0, refuse),
        (verdict, 0, 0, allow),
    ]

    class Instruction(ctypes.Structure):
        _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]

    class Program(ctypes.Structure):
        _fields_ = [("len", ctypes.c_uint16), ("filter", ctypes.POINTER(Instruction))]

    code = (Instruction * len(program))(*program)
    no_new_privileges, seccomp, filter_mode = 38, 22, 2
    c_ulong = ctypes.c_ulong
    if LIBC.prctl(no_new_privileges, c_ulong(1), c_ulong(0), c_ulong(0), c_ulong(0)) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS")
    filter_program = Program(len(program), code)
    if LIBC.prctl(seccomp, c_ulong(filter_mode), ctypes.byref(filter_program), c_ulong(0), c_ulong(0)) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_SECCOMP")


engine = jit.engine()
SOURCE = "define i64 @f{0}(i64 %a, i64 %b) {{ %c = add i64 %a, %b\n %d = add i64 %c, {0}\n ret i64 %d }}"

if MODE == "mappings":
    with open("/proc/sys/vm/max_map_count") as file:
        exhaust_mappings(int(file.read()) // 9)
addresses = []
for index in range(COUNT):
    if (MODE, index) in (("mapping", 0), ("mapping-later", COUNT // 4)):
        refuse_executable_files()
    addresses.append(jit.compile_into(engine, SOURCE.format(index), f"f{index}"))
prototype = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
print("right:", sum(prototype(address)(1, 2) == 3 + index for index, address in enumerate(addresses)))
print("images:", sum(backing_file(address).endswith(".so") for address in addresses))
for name in ("image_failures", "images_written", "images_refused", "images_put_back"):
    print(f"{name}:", read_statistics().get(name))
