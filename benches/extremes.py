#!/usr/bin/env python3
"""What the smallest modules cost, and an object of 20,000 functions: extremes.py LIBRARY [ROUNDS, default 9]

To be run by a Python with llvmlite. The modules are compiled by MCJIT, 300 behind the first 20; the object comes from
the C compiler and is only linked. Processor time in the process, which the kernel's other work does not disturb much;
the minimum of the rounds, which alternate. `default` are the library's own sinks, `run` those of `jitlisten run`.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

SMALLEST = """
import llvmlite.binding as llvm, time
llvm.initialize_native_target(); llvm.initialize_native_asmprinter()
machine = llvm.Target.from_default_triple().create_target_machine()
engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
for at in range(320):
    if at == 20: began = time.process_time_ns()
    engine.add_module(llvm.parse_assembly(f"define i32 @f{at}(i32 %x) {{ %y = add i32 %x, {at} ret i32 %y }}"))
    engine.finalize_object()
print((time.process_time_ns() - began) / 300e6)
"""
LARGEST = """
import llvmlite.binding as llvm, sys, time
llvm.initialize_native_target(); llvm.initialize_native_asmprinter()
machine = llvm.Target.from_default_triple().create_target_machine()
engine = llvm.create_mcjit_compiler(llvm.parse_assembly(f'target triple = "{llvm.get_process_triple()}"'), machine)
began = time.process_time_ns()
engine.add_object_file(llvm.ObjectFileRef.from_path(sys.argv[1])); engine.finalize_object()
print((time.process_time_ns() - began) / 1e6)
"""


def main():
    library, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 9
    with tempfile.TemporaryDirectory() as directory:
        source, made = pathlib.Path(directory, "many.c"), pathlib.Path(directory, "many.o")
        source.write_text("".join(f"int f{at}(int x) {{ return x * {at} + 1; }}\n" for at in range(20_000)))
        subprocess.run(["cc", "-O1", "-fPIC", "-c", source, "-o", made], check=True)
        stock = {name: value for name, value in os.environ.items() if not name.startswith("JITLISTEN")}
        ours = stock | {
            "LD_PRELOAD": str(pathlib.Path(library).resolve()), "JITLISTEN_DIR": directory, "JITDUMPDIR": directory
        }
        kinds = {
            "stock": stock, "stock again": stock, "default": ours,
            "run": ours | {"JITLISTEN": "perfmap,image,unwind,modules"}, "all": ours | {"JITLISTEN": "all"},
        }
        print("| | " + " | ".join(kinds) + " |\n|" + " --- |" * (1 + len(kinds)))
        for what, program in ("a smallest module", SMALLEST), ("20,000 functions", LARGEST):
            times = {kind: [] for kind in kinds}
            for _ in range(rounds):
                for kind, environment in kinds.items():
                    process = subprocess.Popen(
                        [sys.executable, "-c", program, made], env=environment, stdout=subprocess.PIPE, text=True
                    )
                    times[kind].append(float(process.communicate()[0]))
                    pathlib.Path(f"/tmp/perf-{process.pid}.map").unlink(missing_ok=True)
            least = {kind: min(all_of) for kind, all_of in times.items()}
            cells = [f"{least[kind]:.2f} ms ({least[kind] - least['stock']:+.2f})" for kind in kinds]
            print(f"| {what} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
