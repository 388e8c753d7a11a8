#!/usr/bin/env python3
"""Writes report/src/loops/aarch64.txt: machine code of kernels.py for aarch64, compiled with this machine's Numba. The
unit tests of `loops` check facts about it.

    python benches/why/aarch64.py       the llvmlite of this Python must have the aarch64 target, as in wheels
"""

import os
import pathlib
import re

# Keep Numba from optimising the IR, because it would target this machine's processor.
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
WORDS_PER_LINE = 13


def generate_ir(kernel, values):
    """Returns the LLVM IR of a kernel and its callees."""
    modules = []
    original = codegen.CPUCodeLibrary._optimize_final_module
    codegen.CPUCodeLibrary._optimize_final_module = lambda library: (
        modules.append((library.name, str(library._final_module))), original(library)
    )
    kernel.compile(tuple(map(typeof, values)))
    codegen.CPUCodeLibrary._optimize_final_module = original
    return next(text for name, text in modules if name == kernel.py_func.__name__)


def compile_ir(text):
    """Returns the machine code of the first function and its callees."""
    target = llvm.Target.from_triple(TRIPLE)
    machine = target.create_target_machine(cpu=PROCESSOR, opt=3, reloc="static", codemodel="large", jit=True)
    module = llvm.parse_assembly(re.sub(r'"target-(cpu|features)"="[^"]*"', "", text))
    module.triple, module.data_layout = TRIPLE, str(machine.target_data)
    for function in module.functions:
        # Internal linkage makes LLVM drop the wrappers for Python and C callers.
        if not function.is_declaration and not function.name.startswith("_ZN7kernels"):
            function.linkage = "internal"
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.slp_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    passes = builder.getModulePassManager()
    passes.add_refprune_pass()
    passes.run(module, builder)
    sections = llvm.ObjectFileRef.from_data(machine.emit_object(module)).sections()
    section_data = {section.name(): section.data() for section in sections}
    return section_data[b".text"]


def main():
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    with open(FILE, "w", encoding="utf-8") as file:
        print("# Written by benches/why/aarch64.py: a kernel's name, and the words of its code.", file=file)
        for name in KERNELS:
            arguments = kernels.kernel_arguments(name.removesuffix("_changed"))
            machine_code = compile_ir(generate_ir(getattr(kernels, name), arguments))
            words = [word[::-1].hex() for word in re.findall(b"(?s)....", machine_code)]
            print(name, file=file)
            for start in range(0, len(words), WORDS_PER_LINE):
                print(*words[start : start + WORDS_PER_LINE], file=file)


if __name__ == "__main__":
    main()
