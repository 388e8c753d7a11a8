#!/usr/bin/env python3
"""What a library or a program costs that is looked into for an LLVM: opens.py [--rounds N] [--before LIBRARY] WHAT...

WHAT is the file of a library: processor time of `dlopen` in a program of its own (NEEDED,FILE opens another one before,
as libpython for jaxlib's). Or `run:COMMAND`: processor time of the whole process, as `run:/bin/true` and `run:node -e
0`. Or `made:MB`: a library that is made here, without an LLVM: as many megabytes, a third of them code, a third
constants and a third data that the loader relocates, with 100,000 symbols and an import of `mprotect`; nothing in it is
found, so all of it is searched that ever is. Or `typical:MB`, the same with a thirtieth of data: as in libraries that
there are.

Times are in ms, the third smallest of the rounds, which alternate. `off` is JITLISTEN_LLVM=off (nothing is looked for),
`list` looks for LLVM's GDB JIT list only, `all` for everything; `again` is the same once more (A/A). With --before,
another build of the library is measured in the same rounds.
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
WAYS = {"stock": None, "off": "off", "list": "list", "all": "all", "list again": "list"}

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


def make(megabytes, part, directory):
    """The library: see above. A `part` of it is data."""
    data = (megabytes << 20) // part
    third = ((megabytes << 20) - data) // 2
    chance = random.Random(1)
    for name in "code", "constants":
        (directory / name).write_bytes(chance.randbytes(third))
    symbols = 100_000
    source = directory / "made.s"
    with open(source, "w") as file:
        file.write(f'.text\n.globl made_code\nmade_code: .incbin "{directory}/code"\n')
        file.write(f'.section .rodata\n.globl made_constants\nmade_constants: .incbin "{directory}/constants"\n')
        # Words that the loader relocates: 24 bytes each in the table.
        file.write(f'.section .data.rel.ro,"aw"\n.balign 8\n.rept {data // 32}\n.quad made_local\n.endr\n')
        file.write('.text\nmade_local: ret\n.globl made_calls\nmade_calls: jmp mprotect@PLT\n')
        for at in range(symbols):
            file.write(f".globl _ZN4made8anything{at:06}Ev\n.set _ZN4made8anything{at:06}Ev, made_local\n")
    library = directory / f"libmade{megabytes}-{part}.so"
    subprocess.run(["cc", "-shared", "-s", source, "-o", library], check=True)
    for name in "code", "constants", "made.s":
        (directory / name).unlink()
    return library


def environment(library, ways):
    if ways is None:
        return dict(os.environ)
    return os.environ | {"LD_PRELOAD": str(library), "JITLISTEN_LLVM": ways}


def of_opening(words, library, ways):
    return float(
        subprocess.run(words, env=environment(library, ways), check=True, capture_output=True, text=True).stdout
    )


def of_process(command, library, ways):
    return processor_time(command, environment(library, ways), stderr=subprocess.DEVNULL) / 1e3


def measured(word, program, directory):
    """What it is called, how large its file is, and how its time is taken."""
    kind, _, rest = word.partition(":")
    if kind == "run":
        command = shlex.split(rest)
        size = pathlib.Path(shutil.which(command[0])).stat().st_size
        return rest, size, lambda library, ways: of_process(command, library, ways)
    needed = []
    if kind in ("made", "typical"):
        what = make(int(rest), 3 if kind == "made" else 30, directory)
    else:
        *needed, what = map(pathlib.Path, word.split(","))
    name = word if kind in ("made", "typical") else what.name
    return name, what.stat().st_size, lambda library, ways: of_opening([program, *needed, what], library, ways)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--before", type=pathlib.Path, metavar="LIBRARY")
    parser.add_argument("what", nargs="+", metavar="WHAT")
    options = parser.parse_args()
    if options.rounds < 3:
        sys.exit("three rounds at least")
    ways = {name: (LIBRARY, way) for name, way in WAYS.items()}
    if options.before is not None:
        ways |= {f"{name} before": (options.before.resolve(), WAYS[name]) for name in ("list", "all")}
    heads = ["what", "MB", *ways, "all - list", "list again - list"] + (["all - list before"] if options.before else [])
    print(f"load {os.getloadavg()[0]:.1f}\n| " + " | ".join(heads) + " |\n|" + " --- |" * len(heads))
    with tempfile.TemporaryDirectory(dir=ROOT / "target") as directory:
        directory = pathlib.Path(directory)
        (directory / "opens.c").write_text(PROGRAM)
        subprocess.run(["cc", "-O1", directory / "opens.c", "-o", directory / "opens", "-ldl"], check=True)
        for word in options.what:
            name, size, time = measured(word, directory / "opens", directory)
            times = {way: [] for way in ways}
            for _ in range(options.rounds):
                for way, (library, sources) in ways.items():
                    times[way].append(time(library, sources))
            third = {way: sorted(all_of)[2] for way, all_of in times.items()}
            more = [third["all"] - third["list"], third["list again"] - third["list"]]
            if options.before is not None:
                more.append(third["all before"] - third["list before"])
            figures = [f"{third[way]:.2f}" for way in ways] + [f"{one:+.2f}" for one in more]
            print(f"| {name} | {size / 1e6:.0f} | " + " | ".join(figures) + " |", flush=True)


if __name__ == "__main__":
    main()
