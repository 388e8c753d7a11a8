"""The sampler beside perf, py-spy and profila, on the same programs, as a Markdown table: benches/beside.py JITLISTEN
[ROUNDS]

JITLISTEN is the command; with the Python that runs this, which has Numba and py-spy; profila, where it is installed,
and gdb; perf. Two programs in compiled code, a loop in one thread and a `prange` on four, call two functions whose work
is three to one, for a fixed number of turns. For each tool: samples of all rounds, those in one of the two functions or
at a line of them, the error of the share in points, one sigma of that many samples, which of the two functions it
cannot see at all, and the program's own time by the clock and by its processor time (all threads), as ratios to runs of
the program alone that were made between.

profila has a gdb of its own (`profila setup`, from conda-forge); where that is not there, this uses the system's.
"""

import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

PROGRAM = '''
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
'''
#: Some two seconds of processor time.
TURNS = 200
#: In place of profila's own gdb.
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


def spans():
    """Lines of each of the two functions, by name."""
    return {name: range(line - 2, line + 2) for name, line in LINES.items()}


def run(words, place, **changes):
    environment = {
        **os.environ, "NUMBA_NUM_THREADS": "4", "NUMBA_THREADING_LAYER": "workqueue", "JITLISTEN_DIR": str(place),
        **changes,
    }
    done = subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True)
    times = re.search(r"\[\d+\.\d+, \d+\.\d+\]", done.stdout)
    return done, json.loads(times[0]) if times else None


def by_report(data, place):
    """All samples, and those of each function, by `jitlisten lines`."""
    found = json.loads(
        subprocess.run(
            [COMMAND, "lines", "--json", "-", data], cwd=place, capture_output=True, text=True, check=True
        ).stdout
    )
    lines = {
        line["line"]: line["self"]
        for file in found["files"]
        if file["path"].endswith("program.py")
        for line in file["lines"]
    }
    return found["samples"], {name: sum(lines.get(line, 0) for line in span) for name, span in spans().items()}


def ours(words, place):
    _, times = run([COMMAND, "record", "-o", "ours.data", "--no-python", "--", *words], place)
    return *by_report("ours.data", place), times


def ours_wall(words, place):
    _, times = run([COMMAND, "record", "-o", "wall.data", "-r", "1000", "--wall", "--no-python", "--", *words], place)
    return *by_report("wall.data", place), times


def perf(words, place):
    _, times = run(
        [
            COMMAND, "run", "--", "perf", "record", "-q", "-e", "task-clock:u", "-F", "199", "-g", "-o", "perf.data",
            *words,
        ],
        place,
    )
    return *by_report("perf.data", place), times


def perf_alone(words, place):
    _, times = run(["perf", "record", "-q", "-e", "task-clock:u", "-F", "199", "-g", "-o", "perf.data", *words], place)
    return *by_report("perf.data", place), times


def py_spy(words, place):
    out = place / "spy.txt"
    _, times = run(
        [
            str(pathlib.Path(sys.executable).parent / "py-spy"), "record", "--native", "-r", "199", "-f", "raw", "-o",
            str(out), "--", *words,
        ],
        place,
    )
    found, total = dict.fromkeys(LINES, 0), 0
    for line in out.read_text().splitlines():
        stack, count = line.rsplit(" ", 1)
        total += int(count)
        for name, span in spans().items():
            if re.search(rf"\b{name}\b", stack) or any(f"program.py:{number})" in stack for number in span):
                found[name] += int(count)
                break
    return total, found, times


def profila(words, place):
    done, times = run([sys.executable, "-c", PROFILA, "annotate", "--", *words[1:]], place)
    about = re.search(r"Total samples:\*\* (\d+)", done.stdout)
    if not about:
        raise RuntimeError((done.stderr.strip().splitlines() or ["nothing"])[-1])
    total, percents = int(about[1]), dict.fromkeys(LINES, 0.0)
    for block in re.finditer(r"program\.py \(lines (\d+) to \d+\):\n\n```\n(.*?)```", done.stdout, re.S):
        for number, line in enumerate(block[2].splitlines(), int(block[1])):
            for name, span in spans().items():
                if number in span and line[:6].strip(" %"):
                    percents[name] += float(line[:6].strip(" %"))
    return total, {name: total * percent / 100 for name, percent in percents.items()}, times


TOOLS = {
    "jitlisten record": ours, "jitlisten record -r 1000 --wall": ours_wall, "jitlisten run, perf record -g": perf,
    "perf record -g": perf_alone, "py-spy --native -r 199": py_spy, "profila": profila,
}


def row(kind, name, tool, place, rounds):
    words = [sys.executable, str(place / "program.py"), kind, str(TURNS)]
    alone, with_it, total, found = [], [], 0, dict.fromkeys(LINES, 0)
    for _ in range(rounds):
        alone.append(run(words, place)[1])
        try:
            samples, of_round, times = tool(words, place)
        except Exception as error:
            print(f"| {kind} | {name} | - | - | {str(error)[:100]} | | | |", flush=True)
            return
        total += samples
        found = {function: count + of_round[function] for function, count in found.items()}
        with_it.append(times)
    alone.append(run(words, place)[1])
    ratio = lambda which: [
        times[which] / statistics.mean((alone[i][which], alone[i + 1][which]))
        for i, times in enumerate(with_it)
        if times
    ]
    cells = [f"{statistics.median(ratio(which)):.3f}" if ratio(which) else "no result" for which in (1, 0)]
    seen = sum(found.values())
    error = f"{abs(100 * found['three'] / seen - 75):.1f} ({100 * (0.75 * 0.25 / seen) ** 0.5:.1f})" if seen else "-"
    missing = ", ".join(f"`{function}`" for function, count in found.items() if not count) or "none"
    print(
        f"| {kind} | {name} | {total} | {100 * seen / max(total, 1):.0f} % | {error} | {missing} | {cells[0]} |"
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
        place = pathlib.Path(name)
        (place / "program.py").write_text(PROGRAM)
        for kind in ("serial", "parallel"):
            for name, tool in TOOLS.items():
                row(kind, name, tool, place, rounds)


if __name__ == "__main__":
    COMMAND = str(pathlib.Path(sys.argv[1]).resolve())
    main()
