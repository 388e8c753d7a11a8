#!/usr/bin/env python3
"""Cost of very small modules, and of an object with 20,000 functions: extremes.py LIBRARY [ROUNDS, default 9]

Needs a Python with llvmlite. MCJIT compiles the modules, 300 of them after a warm-up of 20; the object comes from the C
compiler and is only linked. Times are processor time of the process, which other work on the machine hardly affects;
each is the minimum over interleaved rounds. `default` uses the library's own sinks, `run` those of `jitlisten run`.
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
        source, object_file = pathlib.Path(directory, "many.c"), pathlib.Path(directory, "many.o")
        source.write_text("".join(f"int f{number}(int x) {{ return x * {number} + 1; }}\n" for number in range(20_000)))
        subprocess.run(["cc", "-O1", "-fPIC", "-c", source, "-o", object_file], check=True)
        stock = {name: value for name, value in os.environ.items() if not name.startswith("JITLISTEN")}
        preloaded = stock | {
            "LD_PRELOAD": str(pathlib.Path(library).resolve()),
            "JITLISTEN_DIR": directory,
            "JITDUMPDIR": directory,
        }
        environments = {
            "stock": stock,
            "stock again": stock,
            "default": preloaded,
            "run": preloaded | {"JITLISTEN": "perfmap,image,unwind,modules"},
            "all": preloaded | {"JITLISTEN": "all"},
        }
        print("| | " + " | ".join(environments) + " |\n|" + " --- |" * (1 + len(environments)))
        for label, program in ("a smallest module", SMALLEST), ("20,000 functions", LARGEST):
            times = {kind: [] for kind in environments}
            for _ in range(rounds):
                for kind, environment in environments.items():
                    process = subprocess.Popen(
                        [sys.executable, "-c", program, object_file], env=environment, stdout=subprocess.PIPE, text=True
                    )
                    times[kind].append(float(process.communicate()[0]))
                    pathlib.Path(f"/tmp/perf-{process.pid}.map").unlink(missing_ok=True)
            minima = {kind: min(samples) for kind, samples in times.items()}
            cells = [f"{minima[kind]:.2f} ms ({minima[kind] - minima['stock']:+.2f})" for kind in environments]
            print(f"| {label} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
