#!/usr/bin/env python3
"""What `dlopen` of a library costs that is looked into for an LLVM: opens.py [--rounds N] LIBRARY...

Processor time of `dlopen` in a program of its own, in ms: the third smallest of the rounds, which alternate. `off` is
JITLISTEN_LLVM=off (nothing is looked for), `all` everything. A LIBRARY of the form `made:MB` is made here, without an LLVM: as many
megabytes, a third of them code, a third constants and a third data that the loader relocates, with 100,000 symbols and an import of
`mprotect`; nothing in it is found, so all of it is searched that ever is.
"""

import argparse
import os
import pathlib
import random
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIBRARY = pathlib.Path(os.environ.get("JITLISTEN_LIBRARY", ROOT / "target/release/libjitlisten.so"))
WAYS = {"stock": None, "off": "off", "list": "list", "all": "all", "stock again": None}

PROGRAM = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <time.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); return t.tv_sec * 1e3 + t.tv_nsec / 1e6; }
int main(int count, char **words) {
    double before = now();
    if (count < 2 || !dlopen(words[1], RTLD_NOW)) { fprintf(stderr, "%s\n", dlerror()); return 1; }
    printf("%.3f\n", now() - before);
    return 0;
}
"""


def make(megabytes, directory):
    """The library: see above."""
    third = (megabytes << 20) // 3
    chance = random.Random(1)
    for name in "code", "constants":
        (directory / name).write_bytes(chance.randbytes(third))
    symbols = 100_000
    source = directory / "made.s"
    with open(source, "w") as file:
        file.write(f'.text\n.globl made_code\nmade_code: .incbin "{directory}/code"\n')
        file.write(f'.section .rodata\n.globl made_constants\nmade_constants: .incbin "{directory}/constants"\n')
        # Words that the loader relocates: 24 bytes each in the table.
        file.write(f'.section .data.rel.ro,"aw"\n.balign 8\n.rept {third // 32}\n.quad made_local\n.endr\n')
        file.write('.text\nmade_local: ret\n.globl made_calls\nmade_calls: jmp mprotect@PLT\n')
        for at in range(symbols):
            file.write(f".globl _ZN4made8anything{at:06}Ev\n.set _ZN4made8anything{at:06}Ev, made_local\n")
    library = directory / f"libmade{megabytes}.so"
    subprocess.run(["cc", "-shared", "-s", source, "-o", library], check=True)
    for name in "code", "constants", "made.s":
        (directory / name).unlink()
    return library


def processor_time(program, library, ways):
    environment = dict(os.environ)
    if ways is not None:
        environment |= {"LD_PRELOAD": str(LIBRARY), "JITLISTEN_LLVM": ways}
    return float(subprocess.run([program, library], env=environment, check=True, capture_output=True, text=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("libraries", nargs="+", metavar="LIBRARY")
    options = parser.parse_args()
    if options.rounds < 3:
        sys.exit("three rounds at least")
    print(f"load {os.getloadavg()[0]:.1f}\n| library | MB | " + " | ".join(WAYS) + " |\n| --- |" + " --- |" * (1 + len(WAYS)))
    with tempfile.TemporaryDirectory(dir=ROOT / "target") as directory:
        directory = pathlib.Path(directory)
        (directory / "opens.c").write_text(PROGRAM)
        subprocess.run(["cc", "-O1", directory / "opens.c", "-o", directory / "opens", "-ldl"], check=True)
        for word in options.libraries:
            library = make(int(word[5:]), directory) if word.startswith("made:") else pathlib.Path(word)
            times = {way: [] for way in WAYS}
            for _ in range(options.rounds):
                for way, ways in WAYS.items():
                    times[way].append(processor_time(directory / "opens", library, ways))
            third = [f"{sorted(times[way])[2]:.2f}" for way in WAYS]
            print(f"| {library.name} | {library.stat().st_size / 1e6:.0f} | " + " | ".join(third) + " |", flush=True)


if __name__ == "__main__":
    main()
