#!/usr/bin/env python3
"""Cost of an object in instructions, for each way to observe it. callgrind counts the instructions, so other work on
the machine has no influence.

    instructions.py [--llvm N] [--objects N] [--part listener|jitlink-listener|jitlink]

`listener`: tests/hosts/embedded.c compiles small modules with the MCJIT of Debian's shared LLVM. Variants: stock, with
the GDB JIT list only (JITLISTEN_LLVM=list), with all hooks, and with the list again. The cost of an object is the
difference between many and few objects, divided by their number. System calls (strace) are measured likewise, because
callgrind does not count instructions in the kernel. Instructions are converted to time with the processor time of the
stock program.

`jitlink-listener`: the same for benches/linked.c and objects of one to sixteen functions, with the LLJIT of LLVM 18 or
newer, which adds each object to the GDB JIT list.

`jitlink`: benches/linked.c with LLJIT, for growing numbers of objects, of functions per object, and of objects that are
linked at the same time. Counts the matcher's work in the library: the calls of `Pattern::of`, which reads an object,
and of `Search::search`, which searches copied memory for it, each including callees.
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

#: Values of JITLISTEN_LLVM by variant. All variants compile the same code, without frame pointers.
CONFIGURATIONS = {"stock": None, "list": "list", "all": "all", "list again": "list"}
MATCHER = {"read": re.compile(r"Pattern::of\b"), "found": re.compile(r"placement::Search::search\b")}


def build(llvm, source, directory):
    program = directory / source.stem
    libraries = subprocess.run(
        [f"llvm-config-{llvm}", "--libdir"], check=True, capture_output=True, text=True
    ).stdout.strip()
    name = f"-lLLVM-{llvm}"
    definitions = ["-DOLD_CONTEXTS"] if llvm < 21 else []
    subprocess.run(
        [
            "cc",
            "-O1",
            *definitions,
            source,
            "-o",
            program,
            f"-L{libraries}",
            f"-Wl,-rpath,{libraries}",
            name,
            "-pthread",
            "-ldl",
        ],
        check=True,
    )
    return program


def environment(hooks, sinks="perfmap"):
    variables = dict(os.environ)
    if hooks is not None:
        variables |= {
            "JITLISTEN": sinks,
            "JITLISTEN_FRAME_POINTERS": "untouched",
            "JITLISTEN_LLVM": hooks,
            "LD_PRELOAD": str(LIBRARY),
        }
    return variables


def run(command, hooks, **options):
    """Runs a command with the library preloaded, even if a tool such as callgrind starts the program."""
    process = subprocess.Popen(
        [str(word) for word in command],
        env=environment(hooks),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        **options,
    )
    stderr = process.communicate()[1].decode(errors="replace")
    pathlib.Path(f"/tmp/perf-{process.pid}.map").unlink(missing_ok=True)
    if process.returncode:
        sys.exit(f"{command}: {process.returncode}\n{stderr}")
    return stderr


def run_callgrind(command, hooks, directory):
    """Runs a command under callgrind; returns the text of the output file."""
    path = directory / "callgrind.out"
    run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={path}", *command], hooks)
    return path.read_text(errors="replace")


def count_instructions(command, hooks, directory):
    return int(re.search(r"^(?:summary|totals): (\d+)", run_callgrind(command, hooks, directory), re.M)[1])


def count_system_calls(command, hooks, directory):
    path = directory / "strace.out"
    run(["strace", "-f", "-c", "-o", path, *command], hooks)
    [total] = re.findall(r"^\s*100\.00\s+\S+\s+(?:\S+\s+)?(\d+)\s+(?:\d+\s+)?total", path.read_text(), re.M)
    return int(total)


def measure_processor_time(command):
    before = os.times()
    run(command, None)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def print_listener_table(title, objects, make_command, directory):
    """Prints a table of the cost of an object; `make_command` returns the command for a number of objects."""
    results = {}
    for name, hooks in CONFIGURATIONS.items():
        cost_per_object = lambda count: (
            (count(make_command(FEW + objects), hooks, directory) - count(make_command(FEW), hooks, directory))
            / objects
        )
        results[name] = cost_per_object(count_instructions), cost_per_object(count_system_calls)
    times = sorted(
        measure_processor_time(make_command(FEW + objects)) - measure_processor_time(make_command(FEW))
        for _ in range(7)
    )
    instructions_per_us = results["stock"][0] / (1e6 * times[len(times) // 2] / objects)
    print(
        f"{title}, {objects} objects; an object takes {1e6 * times[len(times) // 2] / objects:.0f} us of processor time"
        f" stock, so 10 us are {10 * instructions_per_us:,.0f} instructions here\n"
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
    print_listener_table(f"LLVM {llvm}, MCJIT", objects, lambda count: [program, "mcjit", str(count)], directory)


def jitlink_listener(llvm, objects, directory):
    program = build(llvm, ROOT / "benches/linked.c", directory)
    for functions in (1, 4, 16):
        make_command = lambda count: [program, str(count), str(functions), "debug"]
        print_listener_table(
            f"LLVM {llvm}, JITLink with a list, {functions} functions", objects, make_command, directory
        )


def sum_inclusive(text, patterns):
    """Sums up the inclusive instructions of calls to functions whose names match a pattern."""
    names, sums, callee = {}, collections.Counter(), None
    pending_callee = None
    for line in text.splitlines():
        if line.startswith("cfn="):
            number, _, name = line[4:].partition(" ")
            if name:
                names[number] = name
            callee = names.get(number, "")
        elif line.startswith("fn="):
            number, _, name = line[3:].partition(" ")
            if name:
                names[number] = name
        elif line.startswith("calls="):
            pending_callee = callee
        elif pending_callee is not None:
            cost = int(line.split()[-1])
            for key, pattern in patterns.items():
                if pattern.search(pending_callee):
                    sums[key] += cost
            pending_callee = None
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
        for objects, functions, mode in rows:
            command = [program, str(objects), str(functions)] + (["chain"] if mode == "at the same time" else [])
            sums = sum_inclusive(run_callgrind(command, "all", directory), MATCHER)
            if not sums["read"] or not sums["found"]:
                sys.exit("the matcher is not in the counts: its functions have other names")
            read, search = (sums[key] / objects for key in ("read", "found"))
            points.append((functions if name == "functions" else objects, sums["read"] + sums["found"]))
            print(
                f"| {objects} | {functions} | {mode} | {read:,.0f} | {search:,.0f}"
                f" | {(read + search) / functions:,.0f} |"
            )
        (first_size, first_cost), (last_size, last_cost) = points[0], points[-1]
        growth[name] = math.log(last_cost / first_cost) / math.log(last_size / first_size)
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
