#!/usr/bin/env python3
"""What an object costs, by how it is observed: processor time for one object more.

    objects.py [--rounds N] [--objects N] [--llvm N] [--jitlink FUNCTIONS]

A C program (tests/hosts/embedded.c) compiles small modules with MCJIT of Debian's shared LLVM; with --jitlink, another
one (benches/linked.c) with LLJIT of LLVM 18 or newer, which lists each object for debuggers, modules of so many
functions. Each round runs it stock, with the list for debuggers alone (JITLISTEN_LLVM=list) and with everything, for a
few objects and for many; the difference by the number is what an object costs. The rounds alternate, so that a busy
machine disturbs all alike; medians of the rounds' differences are printed, and the difference of what the quickest
quarter of the rounds took, which other work on the machine disturbs least. `list again` is the same as `list` (A/A).
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from instructions import CONFIGURATIONS, FEW, ROOT, build, environment


def processor_time(words, variables, **further):
    """Microseconds of user and system time."""
    process = subprocess.Popen(words, env=variables, stdout=subprocess.DEVNULL, **further)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = status
    pathlib.Path(f"/tmp/perf-{process.pid}.map").unlink(missing_ok=True)
    if status:
        sys.exit(f"{words}: {status}")
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

        def words(objects):
            return (
                [program, str(objects), str(options.jitlink), "debug"]
                if options.jitlink
                else [program, "mcjit", str(objects)]
            )

        costs = {name: [] for name in CONFIGURATIONS}
        for _ in range(options.rounds):
            for name, ways in CONFIGURATIONS.items():
                few, many = (
                    processor_time(words(objects), environment(ways)) for objects in (FEW, FEW + options.objects)
                )
                costs[name].append((many - few) / options.objects)
    what = f"JITLink with a list, {options.jitlink} functions" if options.jitlink else "MCJIT"
    print(f"LLVM {llvm}, {what}, {options.rounds} rounds of {options.objects} objects; load {os.getloadavg()[0]:.1f}")
    print("| | us an object, median | over `list`, median | quickest quarter | over `list` |")
    print("| --- | --- | --- | --- | --- |")
    for name, values in costs.items():
        over = statistics.median([value - base for value, base in zip(values, costs["list"])])
        quick = quickest(values)
        print(
            f"| {name} | {statistics.median(values):.1f} | {over:+.1f} | {quick:.1f} |"
            f" {quick - quickest(costs['list']):+.1f} |"
        )


def quickest(values):
    """Mean of the quickest quarter."""
    return statistics.mean(sorted(values)[: max(1, len(values) // 4)])


if __name__ == "__main__":
    main()
