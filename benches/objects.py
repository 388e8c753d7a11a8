#!/usr/bin/env python3
"""Processor time per additional object, for each way to observe it.

    objects.py [--rounds N] [--objects N] [--llvm N] [--jitlink FUNCTIONS]

A C program (tests/hosts/embedded.c) compiles small modules with the MCJIT of Debian's shared LLVM. With --jitlink,
another one (benches/linked.c) compiles modules of FUNCTIONS functions with the LLJIT of LLVM 18 or newer, which adds
each object to the GDB JIT list. Each round runs the program stock, with the list only (JITLISTEN_LLVM=list), and with
all hooks, for few and for many objects. The cost of an object is the difference divided by their number. The rounds are
interleaved, so that a busy machine affects all variants alike. Prints medians of the differences, and means of the
quickest quarter of the rounds, which other work affects least. `list again` is the same as `list` (A/A).
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from instructions import CONFIGURATIONS, FEW, ROOT, build, environment


def processor_time(command, variables, **options):
    """Runs a command; returns its user and system time in microseconds."""
    process = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, **options)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = status
    pathlib.Path(f"/tmp/perf-{process.pid}.map").unlink(missing_ok=True)
    if status:
        sys.exit(f"{command}: {status}")
    return 1e6 * (usage.ru_utime + usage.ru_stime)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--objects", type=int, default=400)
    parser.add_argument("--llvm", type=int)
    parser.add_argument("--jitlink", type=int, metavar="FUNCTIONS")
    options = parser.parse_args()
    llvm = options.llvm or (19 if options.jitlink else 14)
    with tempfile.TemporaryDirectory() as directory:
        source = "benches/linked.c" if options.jitlink else "tests/hosts/embedded.c"
        program = build(llvm, ROOT / source, pathlib.Path(directory))

        def make_command(objects):
            return (
                [program, str(objects), str(options.jitlink), "debug"]
                if options.jitlink
                else [program, "mcjit", str(objects)]
            )

        costs = {name: [] for name in CONFIGURATIONS}
        for _ in range(options.rounds):
            for name, hooks in CONFIGURATIONS.items():
                few_time, many_time = (
                    processor_time(make_command(objects), environment(hooks))
                    for objects in (FEW, FEW + options.objects)
                )
                costs[name].append((many_time - few_time) / options.objects)
    title = f"JITLink with a list, {options.jitlink} functions" if options.jitlink else "MCJIT"
    print(f"LLVM {llvm}, {title}, {options.rounds} rounds of {options.objects} objects; load {os.getloadavg()[0]:.1f}")
    print("| | us an object, median | over `list`, median | quickest quarter | over `list` |")
    print("| --- | --- | --- | --- | --- |")
    for name, values in costs.items():
        median_difference = statistics.median([value - base for value, base in zip(values, costs["list"])])
        quick_mean = quickest(values)
        print(
            f"| {name} | {statistics.median(values):.1f} | {median_difference:+.1f} | {quick_mean:.1f} |"
            f" {quick_mean - quickest(costs['list']):+.1f} |"
        )


def quickest(values):
    """Returns the mean of the quickest quarter."""
    return statistics.mean(sorted(values)[: max(1, len(values) // 4)])


if __name__ == "__main__":
    main()
