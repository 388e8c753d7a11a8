"""Compares our recorder with perf, py-spy and profila on the same programs, as a Markdown table.

    benches/beside.py JITLISTEN [ROUNDS]

JITLISTEN is the command. Needs perf, and a Python with Numba and py-spy; profila and gdb are optional. Two compiled
programs, a loop in one thread and a `prange` on four, call two functions that do work in the ratio 3:1, for a fixed
number of turns. For each tool, the table has the number of samples in all rounds, the percentage of these in the two
functions, the error of the larger share (75 % in truth) in points with one sigma, and the functions that the tool
cannot see. It also has the program's wall-clock and processor time (all threads), relative to runs without a tool
before and after.

profila has a gdb of its own (`profila setup`, from conda-forge); if that is missing, the system's gdb is used.
"""

import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

PROGRAM = """
import sys, time, json
import numpy as np
from numba import njit, prange

@njit
def three(x, n):
    for _ in range(3 * n):
        x = x * 0.999 + 1.0 / (x * x + 1.0)  # three
    return x

@njit
def one(x, n):
    for _ in range(n):
        x = x * 0.998 + 1.0 / (x * x + 2.0)  # one
    return x

@njit
def serial(out, n):
    for i in range(out.size):
        out[i] = three(out[i], n + i % 7 * 10) + one(out[i], n + i % 7 * 10)

@njit(parallel=True)
def parallel(out, n):
    for i in prange(out.size):
        out[i] = three(out[i], n + i % 7 * 10) + one(out[i], n + i % 7 * 10)

work = globals()[sys.argv[1]]
out = np.ones(256)
work(out, 10)
began, clock = time.process_time(), time.perf_counter()
for _ in range(int(sys.argv[2])):
    work(out, 2000)
print(json.dumps([time.process_time() - began, time.perf_counter() - clock]), flush=True)
"""
# #: Number of turns, which take about two seconds of processor time.
TURNS = 200
#: Starts profila, with the system's gdb if profila's own is not installed.
PROFILA = """
import os, sys, profila._gdb, profila.__main__ as main
if not os.path.exists(main.GDB_PATH):
    profila._gdb.GDB_PATH = main.GDB_PATH = "/usr/bin/gdb"
main.main()
"""
LINES = {
    name: PROGRAM.splitlines().index(next(line for line in PROGRAM.splitlines() if line.endswith(f"# {name}"))) + 1
    for name in ("three", "one")
}


def line_ranges():
    """Returns the line range of each of the two functions."""
    return {name: range(line - 2, line + 2) for name, line in LINES.items()}


def run(command, directory, **variables):
    environment = {
        **os.environ,
        "NUMBA_NUM_THREADS": "4",
        "NUMBA_THREADING_LAYER": "workqueue",
        "JITLISTEN_DIR": str(directory),
        **variables,
    }
    result = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
    times = re.search(r"\[\d+\.\d+, \d+\.\d+\]", result.stdout)
    return result, json.loads(times[0]) if times else None


def count_samples(data, directory):
    """Returns the total number of samples and the number in each function, from `jitlisten lines`."""
    report = json.loads(
        subprocess.run(
            [COMMAND, "lines", "--json", "-", data], cwd=directory, capture_output=True, text=True, check=True
        ).stdout
    )
    lines = {
        line["line"]: line["self"]
        for file in report["files"]
        if file["path"].endswith("program.py")
        for line in file["lines"]
    }
    return report["samples"], {name: sum(lines.get(line, 0) for line in span) for name, span in line_ranges().items()}


def run_ours(command, directory):
    _, times = run([COMMAND, "record", "-o", "ours.data", "--no-python", "--", *command], directory)
    return *count_samples("ours.data", directory), times


def run_ours_wall(command, directory):
    _, times = run(
        [COMMAND, "record", "-o", "wall.data", "-r", "1000", "--wall", "--no-python", "--", *command], directory
    )
    return *count_samples("wall.data", directory), times


def run_perf(command, directory):
    perf = ["perf", "record", "-q", "-e", "task-clock:u", "-F199", "-g", "-o", "perf.data"]
    _, times = run([COMMAND, "run", "--", *perf, *command], directory)
    return *count_samples("perf.data", directory), times


def run_perf_alone(command, directory):
    _, times = run(
        ["perf", "record", "-q", "-e", "task-clock:u", "-F", "199", "-g", "-o", "perf.data", *command], directory
    )
    return *count_samples("perf.data", directory), times


def run_py_spy(command, directory):
    path = directory / "spy.txt"
    _, times = run(
        [
            str(pathlib.Path(sys.executable).parent / "py-spy"),
            "record",
            "--native",
            "-r",
            "199",
            "-f",
            "raw",
            "-o",
            str(path),
            "--",
            *command,
        ],
        directory,
    )
    counts, total = dict.fromkeys(LINES, 0), 0
    for line in path.read_text().splitlines():
        stack, count = line.rsplit(" ", 1)
        total += int(count)
        for name, span in line_ranges().items():
            if re.search(rf"\b{name}\b", stack) or any(f"program.py:{number})" in stack for number in span):
                counts[name] += int(count)
                break
    return total, counts, times


def run_profila(command, directory):
    result, times = run([sys.executable, "-c", PROFILA, "annotate", "--", *command[1:]], directory)
    match = re.search(r"Total samples:\*\* (\d+)", result.stdout)
    if not match:
        raise RuntimeError((result.stderr.strip().splitlines() or ["nothing"])[-1])
    total, percents = int(match[1]), dict.fromkeys(LINES, 0.0)
    for block in re.finditer(r"program\.py \(lines (\d+) to \d+\):\n\n```\n(.*?)```", result.stdout, re.S):
        for number, line in enumerate(block[2].splitlines(), int(block[1])):
            for name, span in line_ranges().items():
                if number in span and line[:6].strip(" %"):
                    percents[name] += float(line[:6].strip(" %"))
    return total, {name: total * percent / 100 for name, percent in percents.items()}, times


TOOLS = {
    "jitlisten record": run_ours,
    "jitlisten record -r 1000 --wall": run_ours_wall,
    "jitlisten run, perf record -g": run_perf,
    "perf record -g": run_perf_alone,
    "py-spy --native -r 199": run_py_spy,
    "profila": run_profila,
}


def print_row(kind, name, tool, directory, rounds):
    command = [sys.executable, str(directory / "program.py"), kind, str(TURNS)]
    untooled_times, tool_times, total, counts = [], [], 0, dict.fromkeys(LINES, 0)
    for _ in range(rounds):
        untooled_times.append(run(command, directory)[1])
        try:
            samples, round_counts, times = tool(command, directory)
        except Exception as error:
            print(f"| {kind} | {name} | - | - | {str(error)[:100]} | | | |", flush=True)
            return
        total += samples
        counts = {function: count + round_counts[function] for function, count in counts.items()}
        tool_times.append(times)
    untooled_times.append(run(command, directory)[1])
    ratio = lambda column: [
        times[column] / statistics.mean((untooled_times[i][column], untooled_times[i + 1][column]))
        for i, times in enumerate(tool_times)
        if times
    ]
    cells = [f"{statistics.median(ratio(column)):.3f}" if ratio(column) else "no result" for column in (1, 0)]
    counted = sum(counts.values())
    error = (
        f"{abs(100 * counts['three'] / counted - 75):.1f} ({100 * (0.75 * 0.25 / counted) ** 0.5:.1f})"
        if counted
        else "-"
    )
    missing = ", ".join(f"`{function}`" for function, count in counts.items() if not count) or "none"
    print(
        f"| {kind} | {name} | {total} | {100 * counted / max(total, 1):.0f} % | {error} | {missing} | {cells[0]} |"
        f" {cells[1]} |",
        flush=True,
    )


def main():
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    print(
        "| program | tool | samples | in the two functions | error (sigma), points | functions it cannot see | clock |"
        " processor time |\n| --- | --- | --- | --- | --- | --- | --- | --- |"
    )
    with tempfile.TemporaryDirectory(prefix="jitlisten-beside-") as name:
        directory = pathlib.Path(name)
        (directory / "program.py").write_text(PROGRAM)
        for kind in ("serial", "parallel"):
            for name, tool in TOOLS.items():
                print_row(kind, name, tool, directory, rounds)


if __name__ == "__main__":
    COMMAND = str(pathlib.Path(sys.argv[1]).resolve())
    main()
