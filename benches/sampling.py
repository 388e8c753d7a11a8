"""Accuracy and cost of the sampler, as Markdown tables: benches/sampling.py LIBRARY [ROUNDS]

Needs cc, perf, valgrind, and the Python of target/venv/numba-0.68.1. Compares the shares of functions with callgrind's
instruction counts and with perf's samples, the shares of lines (as reported by the `jitlisten` command next to LIBRARY)
with callgrind's counts, and the processor times of threads with the kernel's. The cost is measured in one process that
turns recording on and off; turns without recording are compared with each other (A/A). `sampling.py LIBRARY lines
[SECONDS]` prints the table of lines; it needs a Python of ci/lines.sh, which has pytest.
"""

import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMPLETE = ("_start", "clone3", "__clone3", "clone", "__clone")


def read_samples(data):
    """Returns thread, period and frames (innermost first) of each sample."""
    command = ["perf", "script", "--no-inline", "--max-stack", "1024", "-F", "tid,period,ip,sym", "-i", str(data)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    parsed_samples = []
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if line.strip()]
        if lines:
            tid, period = lines[0].replace(":", " ").split()[:2]
            frames = [line.strip().split(" ", 1)[-1].strip() for line in lines[1:]]
            parsed_samples.append((int(tid), int(period), frames))
    return parsed_samples


def share_of(all_samples, name, names):
    weight = lambda functions: sum(
        period for _, period, frames in all_samples if any(function in frames for function in functions)
    )
    return 100 * weight([name]) / max(weight(names), 1)


def record(command, data, options="", **variables):
    variables.update(LD_PRELOAD=LIBRARY, JITLISTEN="unwind", JITLISTEN_RECORD=f"{data}{options}")
    result = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
    return read_samples(data), result.stdout


def measure_instructions(program, directory):
    """Measures inclusive instruction counts of `sampled fixed`; returns a function for the share of a name."""
    path = directory / "callgrind"
    subprocess.run(
        ["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={path}", program, "fixed", "20"],
        check=True,
        capture_output=True,
    )
    text = subprocess.run(
        ["callgrind_annotate", "--inclusive=yes", "--threshold=100", path], capture_output=True, text=True, check=True
    ).stdout
    counts = {}
    for line in text.splitlines():
        match = re.match(r"\s*([\d,]+) .*:(\w+) \[", line)
        if match:
            counts.setdefault(match[2], int(match[1].replace(",", "")))
    return lambda first, second: 100 * counts[first] / (counts[first] + counts[second])


def print_shares(program, directory):
    truth = measure_instructions(program, directory)
    print("| program | samples | callgrind's instructions | ours | perf's | stacks of ours that are whole |")
    print("| --- | --- | --- | --- | --- | --- |")
    for scenario, first, second in [("loops", "three_of_four", "one_of_four"), ("exps", "exp_three", "exp_one")]:
        our_samples, _ = record([program, scenario, "25"], directory / "ours.data", ",hz=199")
        data = directory / "perf.data"
        command = ["perf", "record", "-q", "-e", "task-clock:u", "-F199", "--call-graph=dwarf,4096", "-o", str(data)]
        subprocess.run([*command, program, scenario, "25"], check=True, capture_output=True)
        perf_samples = read_samples(data)
        whole_percent = (
            100 * sum(frames[-1:] != [] and frames[-1] in COMPLETE for *_, frames in our_samples) / len(our_samples)
        )
        print(
            f"| {scenario} | {len(our_samples)}, {len(perf_samples)} | {truth(first, second):.1f} % |"
            f" {share_of(our_samples, first, [first, second]):.1f} % |"
            f" {share_of(perf_samples, first, [first, second]):.1f} % | {whole_percent:.2f} % |",
            flush=True,
        )


#: Markers of lines in python/tests/lines/truth.py. The first line of each pair runs the same statement three times as
#: often as the second.
PAIRS = {
    "two loops": ("loop three", "loop one"),
    "inlined callees": ("heavy callee", "light callee"),
    "two files": ("other file", "own line"),
    "`exp` on two lines": ("costly three", "costly one"),
    "`prange`": ("parallel three", "parallel one"),
}


def read_line_counts(data):
    """Returns self and total of each marked line, as pairs of percentage and samples."""
    command = [pathlib.Path(LIBRARY).parent / "jitlisten", "lines", "--json", "-", data]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    counts = {}
    for file in report["files"]:
        for line in file["lines"]:
            _, _, mark = (line["source"] or "").rstrip().rpartition("  # ")
            counts[mark] = [(line[f"{kind}_percent"], line[kind]) for kind in ("self", "total")]
    return counts


def measure_line_instructions(directory, environment):
    """Returns self and total instructions of each marked line in thirty iterations, counted by callgrind."""
    sys.path.insert(0, str(ROOT / "python/tests"))
    from test_lines_callgrind import Counts, place as place_of

    path = directory / "callgrind-lines"
    valgrind = [
        "valgrind",
        "-q",
        "--tool=callgrind",
        "--compress-strings=no",
        "--compress-pos=no",
        f"--callgrind-out-file={path}",
    ]
    program = [sys.executable, ROOT / "python/tests/lines/truth.py", "0"]
    subprocess.run(
        [*valgrind, *program], env={**environment, "NUMBA_CPU_NAME": "generic"}, check=True, capture_output=True
    )
    counts = Counts(path)
    marks = [mark for pair in PAIRS.values() for mark in pair]
    return {mark: [(counter[place_of(mark)],) for counter in (counts.own, counts.all)] for mark in marks}


def print_lines(directory, seconds=110):
    environment = {
        **os.environ,
        "LD_PRELOAD": LIBRARY,
        "JITLISTEN": "image",
        "JITLISTEN_DIR": str(directory),
        "NUMBA_NUM_THREADS": "1",
    }
    data = directory / "lines.data"
    program = [sys.executable, ROOT / "python/tests/lines/truth.py", str(seconds)]
    subprocess.run(program, env={**environment, "JITLISTEN_RECORD": f"{data},hz=249"}, check=True, capture_output=True)
    our_counts, true_counts = read_line_counts(data), measure_line_instructions(directory, environment)
    print("| lines | samples | callgrind's instructions | ours |\n| --- | --- | --- | --- |")
    for name, (heavy, light) in PAIRS.items():
        # Calls of `exp` spend their time in the C library, so totals are compared for the lines that call it.
        index = 1 if "exp" in name else 0
        share = lambda counts: 100 * counts[heavy][index][0] / (counts[heavy][index][0] + counts[light][index][0])
        sample_count = our_counts[heavy][index][1] + our_counts[light][index][1]
        print(f"| {name} | {sample_count} | {share(true_counts):.1f} % | {share(our_counts):.1f} % |", flush=True)


# #: Code placed before each program that has a `prange`.
WAVES = """
import json, os, sys, time
import numpy as np
from numba import njit, prange
@njit(parallel=True)
def waves(out, n):
    for i in prange(out.size):
        x = out[i]
        for _ in range(n):
            x = x * 0.999 + 1.0 / (x * x + 1.0)
        out[i] = x
    return out.sum()
"""

PRANGE = (
    WAVES
    + """
def spent():
    threads = os.listdir("/proc/self/task")
    return {int(t): int(open(f"/proc/self/task/{t}/schedstat").read().split()[0]) for t in threads}
waves(np.arange(64.0), 10)
until = time.process_time() + 8
while time.process_time() < until:
    waves(np.arange(64.0), 100_000)
# The main thread continues after this point.
print({tid: time for tid, time in spent().items() if tid != os.getpid()})
"""
)


def print_threads(directory):
    print("| threads | samples | the worker that is furthest off, by samples : by the kernel | whole stacks |")
    print("| --- | --- | --- | --- |")
    for count in (2, 8):
        all_samples, output = record(
            [sys.executable, "-c", PRANGE],
            directory / "t.data",
            ",hz=199",
            NUMBA_NUM_THREADS=str(count),
            NUMBA_THREADING_LAYER="workqueue",
        )
        kernel_times = {tid: time for tid, time in eval(output).items() if time > 200_000_000}
        ratios = [
            sum(period for tid, period, _ in all_samples if tid == worker) / time
            for worker, time in kernel_times.items()
        ]
        worst = max(ratios, key=lambda ratio: abs(ratio - 1))
        compiled_stacks = [
            frames for *_, frames in all_samples if any("waves" in frame or "prange" in frame for frame in frames)
        ]
        whole_percent = 100 * sum(frames[-1] in COMPLETE for frames in compiled_stacks) / max(len(compiled_stacks), 1)
        print(
            f"| {count} ({len(ratios)} busy) | {len(all_samples)} | {worst:.4f} | {whole_percent:.2f} % |", flush=True
        )


COST = (
    WAVES
    + """
sys.path.insert(0, sys.argv[1])
import jitlisten
jitlisten.enable("unwind", lines=False)
work = lambda: waves(np.arange(64.0), 60_000)
work()
def timed():
    # Record more than a second of processor time, so that the cost of starting a recording is negligible.
    began, clock = time.process_time(), time.perf_counter()
    for _ in range(40):
        work()
    return time.process_time() - began, time.perf_counter() - clock
rows = []
for _ in range(int(sys.argv[3])):
    row = [timed()]
    for hz, wall in ((199, False), (1000, True)):
        jitlisten.start_recording(sys.argv[2], hz=hz, wall=wall, python=False, lines=False)
        row.append(timed())
        jitlisten.stop_recording()
    row.append(timed())
    rows.append(row)
print(json.dumps(rows))
"""
)


def print_cost(directory, rounds, thread_count):
    command = [sys.executable, "-c", COST, str(ROOT / "python"), str(directory / "c.data"), str(rounds)]
    variables = dict(JITLISTEN_LIBRARY=LIBRARY, NUMBA_NUM_THREADS=str(thread_count), NUMBA_THREADING_LAYER="workqueue")
    variables.update(LD_PRELOAD=LIBRARY, JITLISTEN="unwind")
    result = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
    if result.returncode:
        sys.exit(result.stderr)
    rows = json.loads(result.stdout.splitlines()[-1])
    print(f"| {thread_count} threads | 199 Hz of processor time | 1,000 Hz of wall-clock time | A/A |")
    print("| --- | --- | --- | --- |")
    for name, index in (("processor time", 0), ("clock", 1)):
        cells = []
        for column in (1, 2, 3):
            ratios = sorted(row[column][index] / row[0][index] for row in rows)
            quarter = len(ratios) // 4
            cells.append(f"{statistics.median(ratios):.4f} [{ratios[quarter]:.3f}, {ratios[-quarter - 1]:.3f}]")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def main():
    only_lines = sys.argv[2:3] == ["lines"]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 and not only_lines else 30
    with tempfile.TemporaryDirectory(prefix="jitlisten-sampling-") as name:
        directory = pathlib.Path(name)
        if only_lines:
            return print_lines(directory, *map(int, sys.argv[3:4]))
        program = str(directory / "sampled")
        flags = ["-O1", "-g", "-pthread", f"-I{ROOT / 'include'}"]
        source = ROOT / "tests/hosts/sampled.c"
        subprocess.run(["cc", *flags, source, "-lm", "-o", program], check=True)
        print_shares(program, directory)
        print()
        print_threads(directory)
        print()
        for count in (4, 2):
            print_cost(directory, rounds, count)
            print()


if __name__ == "__main__":
    LIBRARY = str(pathlib.Path(sys.argv[1]).resolve())
    main()
