#!/usr/bin/env python3
"""What an object costs in instructions, by how it is observed: callgrind counts them, so other work on the machine does
not disturb.

    instructions.py [--llvm N] [--objects N] [--part listener|jitlink-listener|jitlink]

`listener`: tests/hosts/embedded.c compiles small modules with MCJIT of Debian's shared LLVM: stock, with the GDB JIT
list alone (JITLISTEN_LLVM=list), with everything, and with the list again. The difference between few and many objects,
by their number, is what an object costs; so are system calls (strace). callgrind counts no instruction of the kernel.
What an instruction takes here is the processor time of the stock program by its own count.

`jitlink-listener`: the same of benches/linked.c, with LLJIT of LLVM 18 or newer, which lists each object for debuggers;
for objects of one to sixteen functions.

`jitlink`: benches/linked.c, with LLJIT, for growing numbers of objects, of functions in an object, and of objects that
are linked at the same time. Of what the library does there, the matcher's part are the calls of `Pattern::of` (an
object is read) and of `Search::search` (it is looked for in memory that was copied), each with what it calls.
"""

import argparse
import collections
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIBRARY = pathlib.Path(os.environ.get("JITLISTEN_LIBRARY", ROOT / "target/release/libjitlisten.so"))
FEW = 20

#: Code is the same in all of them: without frame pointers.
CONFIGURATIONS = {"stock": None, "list": "list", "all": "all", "list again": "list"}
MATCHER = {"read": re.compile(r"Pattern::of\b"), "found": re.compile(r"placement::Search::search\b")}


def build(llvm, source, directory):
    program = directory / source.stem
    libraries = subprocess.run(
        [f"llvm-config-{llvm}", "--libdir"], check=True, capture_output=True, text=True
    ).stdout.strip()
    name = f"-lLLVM-{llvm}"
    old = ["-DOLD_CONTEXTS"] if llvm < 21 else []
    subprocess.run(
        [
            "cc", "-O1", *old, source, "-o", program, f"-L{libraries}", f"-Wl,-rpath,{libraries}", name, "-pthread",
            "-ldl",
        ],
        check=True,
    )
    return program


def environment(ways, sinks="perfmap"):
    changed = dict(os.environ)
    if ways is not None:
        changed |= {
            "JITLISTEN": sinks, "JITLISTEN_FRAME_POINTERS": "untouched", "JITLISTEN_LLVM": ways,
            "LD_PRELOAD": str(LIBRARY),
        }
    return changed


def run(words, ways, **further):
    """Runs it; under another program, that one gets the library, too."""
    process = subprocess.Popen(
        [str(word) for word in words], env=environment(ways), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        **further,
    )
    said = process.communicate()[1].decode(errors="replace")
    pathlib.Path(f"/tmp/perf-{process.pid}.map").unlink(missing_ok=True)
    if process.returncode:
        sys.exit(f"{words}: {process.returncode}\n{said}")
    return said


def callgrind(words, ways, directory):
    """The file with the counts."""
    out = directory / "callgrind.out"
    run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", *words], ways)
    return out.read_text(errors="replace")


def instructions(words, ways, directory):
    return int(re.search(r"^(?:summary|totals): (\d+)", callgrind(words, ways, directory), re.M)[1])


def system_calls(words, ways, directory):
    out = directory / "strace.out"
    run(["strace", "-f", "-c", "-o", out, *words], ways)
    [total] = re.findall(r"^\s*100\.00\s+\S+\s+(?:\S+\s+)?(\d+)\s+(?:\d+\s+)?total", out.read_text(), re.M)
    return int(total)


def processor_time(words):
    before = os.times()
    run(words, None)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def by_listener(title, objects, words, directory):
    """A table of what an object costs; `words` is the command for so many objects."""
    results = {}
    for name, ways in CONFIGURATIONS.items():
        more = (
            lambda count: (count(words(FEW + objects), ways, directory) - count(words(FEW), ways, directory)) / objects
        )
        results[name] = more(instructions), more(system_calls)
    times = sorted(processor_time(words(FEW + objects)) - processor_time(words(FEW)) for _ in range(7))
    microsecond = results["stock"][0] / (1e6 * times[len(times) // 2] / objects)
    print(
        f"{title}, {objects} objects; an object takes {1e6 * times[len(times) // 2] / objects:.0f} us of processor time"
        f" stock, so 10 us are {10 * microsecond:,.0f} instructions here\n"
    )
    print(
        "| | instructions an object | over `list` | system calls an object | over `list` |\n| --- | --- | --- | --- |"
        " --- |"
    )
    for name, (count, calls) in results.items():
        base = results["list"]
        print(f"| {name} | {count:,.0f} | {count - base[0]:+,.0f} | {calls:.1f} | {calls - base[1]:+.1f} |", flush=True)
    print()


def listener(llvm, objects, directory):
    program = build(llvm, ROOT / "tests/hosts/embedded.c", directory)
    by_listener(f"LLVM {llvm}, MCJIT", objects, lambda count: [program, "mcjit", str(count)], directory)


def jitlink_listener(llvm, objects, directory):
    program = build(llvm, ROOT / "benches/linked.c", directory)
    for functions in (1, 4, 16):
        words = lambda count: [program, str(count), str(functions), "debug"]
        by_listener(f"LLVM {llvm}, JITLink with a list, {functions} functions", objects, words, directory)


def inclusive(text, patterns):
    """Instructions in the calls of each function whose name matches, with what it calls."""
    names, sums, called = {}, collections.Counter(), None
    pending = None
    for line in text.splitlines():
        if line.startswith("cfn="):
            number, _, name = line[4:].partition(" ")
            if name:
                names[number] = name
            called = names.get(number, "")
        elif line.startswith("fn="):
            number, _, name = line[3:].partition(" ")
            if name:
                names[number] = name
        elif line.startswith("calls="):
            pending = called
        elif pending is not None:
            cost = int(line.split()[-1])
            for what, pattern in patterns.items():
                if pattern.search(pending):
                    sums[what] += cost
            pending = None
    return sums


def jitlink(llvm, directory):
    program = build(llvm, ROOT / "benches/linked.c", directory)
    print(
        "| objects | functions in each | linked | read, instructions an object | found, instructions an object | both,"
        " for each function |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    series = {
        "objects": [(count, 8, "one by one") for count in (25, 100, 400)],
        "functions": [(2, count, "one by one") for count in (50, 200, 800)],
        "at the same time": [(count, 8, "at the same time") for count in (12, 50, 200)],
    }
    growth = {}
    for name, rows in series.items():
        points = []
        for objects, functions, how in rows:
            words = [program, str(objects), str(functions)] + (["chain"] if how == "at the same time" else [])
            sums = inclusive(callgrind(words, "all", directory), MATCHER)
            if not sums["read"] or not sums["found"]:
                sys.exit("the matcher is not in the counts: its functions have other names")
            read, found = (sums[what] / objects for what in ("read", "found"))
            points.append((functions if name == "functions" else objects, sums["read"] + sums["found"]))
            print(
                f"| {objects} | {functions} | {how} | {read:,.0f} | {found:,.0f} | {(read + found) / functions:,.0f} |"
            )
        (first, low), (last, high) = points[0], points[-1]
        growth[name] = math.log(high / low) / math.log(last / first)
    print()
    print("; ".join(f"exponent with {name}: {exponent:.2f}" for name, exponent in growth.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llvm", type=int, default=None)
    parser.add_argument("--objects", type=int, default=100)
    parser.add_argument("--part", choices=["listener", "jitlink-listener", "jitlink"], default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        if options.part in ("listener", None):
            listener(options.llvm or 14, options.objects, pathlib.Path(directory))
        if options.part in ("jitlink-listener", None):
            jitlink_listener(options.llvm or 19, options.objects, pathlib.Path(directory))
        if options.part in ("jitlink", None):
            jitlink(options.llvm or 19, pathlib.Path(directory))


if __name__ == "__main__":
    main()
