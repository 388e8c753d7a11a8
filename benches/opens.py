#!/usr/bin/env python3
"""Cost of searching a library or program for LLVM: opens.py [--rounds N] [--before LIBRARY] [--run JITLISTEN] WHAT...

WHAT is the path of a library: measures the processor time of `dlopen` in a separate program. If it is NEEDED,FILE,
the program first opens NEEDED, such as libpython for jaxlib's library. `run:COMMAND`, such as `run:/bin/true` or
`run:node -e 0`, measures the processor time of the whole process. `made:MB` generates a library of that size without an
LLVM: one third each is code, constants, and data that the loader relocates, with 100,000 symbols and an import of
`mprotect`. The search finds nothing, so it covers everything that is ever searched. In `typical:MB`, only one thirtieth
is data, as in real libraries.

Times are in ms, each the third smallest of the interleaved rounds. `off` is JITLISTEN_LLVM=off (no search), `list`
searches for LLVM's GDB JIT list only, `all` for all hooks; `again` repeats a variant (A/A). --before measures another
build of the library in the same rounds; --run measures also `JITLISTEN run -- COMMAND`, with the installed command.
"""

import argparse
import os
import pathlib
import random
import shlex
import shutil
import subprocess
import sys
import tempfile

from objects import processor_time

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIBRARY = pathlib.Path(os.environ.get("JITLISTEN_LIBRARY", ROOT / "target/release/libjitlisten.so"))
RUN = "run"
VARIANTS = {"stock": None, "off": "off", "list": "list", "all": "all", "list again": "list"}

PROGRAM = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <time.h>
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}
int main(int count, char **words) {
    for (int at = 1; at < count; at++) {
        double before = now();
        if (!dlopen(words[at], RTLD_NOW | RTLD_GLOBAL)) { fprintf(stderr, "%s\n", dlerror()); return 1; }
        if (at + 1 == count) printf("%.3f\n", now() - before);
    }
    return 0;
}
"""


def make_library(megabytes, fraction, directory):
    """Generates the library described above, with a `fraction`-th of its size as data."""
    data = (megabytes << 20) // fraction
    section_bytes = ((megabytes << 20) - data) // 2
    random_source = random.Random(1)
    for name in "code", "constants":
        (directory / name).write_bytes(random_source.randbytes(section_bytes))
    symbols = 100_000
    source = directory / "made.s"
    with open(source, "w") as file:
        file.write(f'.text\n.globl made_code\nmade_code: .incbin "{directory}/code"\n')
        file.write(f'.section .rodata\n.globl made_constants\nmade_constants: .incbin "{directory}/constants"\n')
        # Words that the loader relocates; each also takes 24 bytes in the relocation table.
        file.write(f'.section .data.rel.ro,"aw"\n.balign 8\n.rept {data // 32}\n.quad made_local\n.endr\n')
        file.write(".text\nmade_local: ret\n.globl made_calls\nmade_calls: jmp mprotect@PLT\n")
        for number in range(symbols):
            file.write(f".globl _ZN4made8anything{number:06}Ev\n.set _ZN4made8anything{number:06}Ev, made_local\n")
    library = directory / f"libmade{megabytes}-{fraction}.so"
    subprocess.run(["cc", "-shared", "-s", source, "-o", library], check=True)
    for name in "code", "constants", "made.s":
        (directory / name).unlink()
    return library


def environment(library, hooks):
    if hooks is None:
        return dict(os.environ)
    return os.environ | {"LD_PRELOAD": str(library), "JITLISTEN_LLVM": hooks}


def measure_open(command, library, hooks):
    return float(
        subprocess.run(command, env=environment(library, hooks), check=True, capture_output=True, text=True).stdout
    )


def measure_process(command, library, hooks):
    if hooks == RUN:
        return processor_time([library, "run", "--", *command], dict(os.environ), stderr=subprocess.DEVNULL) / 1e3
    return processor_time(command, environment(library, hooks), stderr=subprocess.DEVNULL) / 1e3


def select_measurement(word, program, directory):
    """Returns the label of WHAT, its file size, and a function that measures its time."""
    kind, _, argument = word.partition(":")
    if kind == "run":
        command = shlex.split(argument)
        size = pathlib.Path(shutil.which(command[0])).stat().st_size
        return argument, size, lambda library, hooks: measure_process(command, library, hooks)
    needed = []
    if kind in ("made", "typical"):
        path = make_library(int(argument), 3 if kind == "made" else 30, directory)
    else:
        *needed, path = map(pathlib.Path, word.split(","))
    name = word if kind in ("made", "typical") else path.name
    return name, path.stat().st_size, lambda library, hooks: measure_open([program, *needed, path], library, hooks)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--before", type=pathlib.Path, metavar="LIBRARY")
    parser.add_argument("--run", type=pathlib.Path, metavar="JITLISTEN")
    parser.add_argument("what", nargs="+", metavar="WHAT")
    options = parser.parse_args()
    if options.rounds < 3:
        sys.exit("three rounds at least")
    variants = {name: (LIBRARY, variant) for name, variant in VARIANTS.items()}
    if options.before is not None:
        variants |= {f"{name} before": (options.before.resolve(), VARIANTS[name]) for name in ("list", "all")}
    if options.run is not None:
        if not all(word.startswith("run:") for word in options.what):
            parser.error("--run measures run:COMMAND")
        variants["run"] = options.run.resolve(), RUN
    titles = ["what", "MB", *variants, "all - list", "list again - list"] + (
        ["all - list before"] if options.before else []
    )
    print(f"load {os.getloadavg()[0]:.1f}\n| " + " | ".join(titles) + " |\n|" + " --- |" * len(titles))
    with tempfile.TemporaryDirectory(dir=ROOT / "target") as directory:
        directory = pathlib.Path(directory)
        (directory / "opens.c").write_text(PROGRAM)
        subprocess.run(["cc", "-O1", directory / "opens.c", "-o", directory / "opens", "-ldl"], check=True)
        for word in options.what:
            name, size, measure = select_measurement(word, directory / "opens", directory)
            times = {variant: [] for variant in variants}
            for _ in range(options.rounds):
                for variant, (library, hooks) in variants.items():
                    times[variant].append(measure(library, hooks))
            third_smallest = {variant: sorted(samples)[2] for variant, samples in times.items()}
            differences = [
                third_smallest["all"] - third_smallest["list"],
                third_smallest["list again"] - third_smallest["list"],
            ]
            if options.before is not None:
                differences.append(third_smallest["all before"] - third_smallest["list before"])
            cells = [f"{third_smallest[variant]:.2f}" for variant in variants] + [
                f"{difference:+.2f}" for difference in differences
            ]
            print(f"| {name} | {size / 1e6:.0f} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
