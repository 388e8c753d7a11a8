"""Many small objects, each finalized on its own.

    many.py COUNT

Prints how many mappings they cost, and whether every function still answers right.
"""

import ctypes
import sys

import llvmlite.binding as llvm

COUNT = int(sys.argv[1])
llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
machine = llvm.Target.from_default_triple().create_target_machine()
engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
SOURCE = "define i64 @f{0}(i64 %a, i64 %b) {{ %c = add i64 %a, %b\n %d = add i64 %c, {0}\n ret i64 %d }}"


def mappings():
    with open("/proc/self/maps") as maps:
        return sum(1 for _ in maps)


before = mappings()
addresses = []
for number in range(COUNT):
    engine.add_module(llvm.parse_assembly(SOURCE.format(number)))
    engine.finalize_object()
    addresses.append(engine.get_function_address(f"f{number}"))
kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
print("right:", sum(kind(address)(1, 2) == 3 + number for number, address in enumerate(addresses)))
print("mappings:", mappings() - before)
