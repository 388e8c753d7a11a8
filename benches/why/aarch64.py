#!/usr/bin/env python3
"""Machine code of kernels.py for aarch64, compiled by this machine's Numba: report/src/loops/aarch64.txt, whose facts
the unit tests of `loops` check.

    python benches/why/aarch64.py       in an environment with Numba, whose llvmlite has this target, as wheels have
"""

import os
import pathlib
import re

# What Numba makes, before its own LLVM optimises it for this processor.
os.environ["NUMBA_OPT"] = "0"

import llvmlite.binding as llvm
from numba import typeof
from numba.core import codegen

import kernels

TRIPLE, PROCESSOR = "aarch64-unknown-linux-gnu", "neoverse-n1"
FILE = pathlib.Path(__file__).resolve().parents[2] / "report/src/loops/aarch64.txt"
KERNELS = (
    "total", "total_changed", "dot", "scaled", "ratio", "bell", "widened", "bins", "running", "chosen", "iterated",
    "roots", "smoothed_in_place", "integers", "largest", "present", "refused", "by_scalar", "of_list", "zipped",
    "complex_product",
)
WORDS_OF_A_LINE = 13


def unoptimised(kernel, values):
    """The module of a kernel with all that it calls."""
    modules = []
    stock = codegen.CPUCodeLibrary._optimize_final_module
    codegen.CPUCodeLibrary._optimize_final_module = lambda library: (
        modules.append((library.name, str(library._final_module))), stock(library)
    )
    kernel.compile(tuple(map(typeof, values)))
    codegen.CPUCodeLibrary._optimize_final_module = stock
    return next(text for name, text in modules if name == kernel.py_func.__name__)


def code(text):
    """The bytes of the first function, and of what it calls."""
    target = llvm.Target.from_triple(TRIPLE)
    machine = target.create_target_machine(cpu=PROCESSOR, opt=3, reloc="static", codemodel="large", jit=True)
    module = llvm.parse_assembly(re.sub(r'"target-(cpu|features)"="[^"]*"', "", text))
    module.triple, module.data_layout = TRIPLE, str(machine.target_data)
    for function in module.functions:
        # The wrappers for callers from Python and C are dropped.
        if not function.is_declaration and not function.name.startswith("_ZN7kernels"):
            function.linkage = "internal"
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.slp_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    passes = builder.getModulePassManager()
    passes.add_refprune_pass()
    passes.run(module, builder)
    sections = llvm.ObjectFileRef.from_data(machine.emit_object(module)).sections()
    found = {section.name(): section.data() for section in sections}
    return found[b".text"]


def main():
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    with open(FILE, "w", encoding="utf-8") as file:
        print("# Written by benches/why/aarch64.py: a kernel's name, and the words of its code.", file=file)
        for name in KERNELS:
            given = kernels.given(name.removesuffix("_changed"))
            made = code(unoptimised(getattr(kernels, name), given))
            words = [word[::-1].hex() for word in re.findall(b"(?s)....", made)]
            print(name, file=file)
            for at in range(0, len(words), WORDS_OF_A_LINE):
                print(*words[at : at + WORDS_OF_A_LINE], file=file)


if __name__ == "__main__":
    main()
