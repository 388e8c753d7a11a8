"""Compares our recorder with py-spy and CPython's `profiling.sampling` on interpreted programs, as rows of
records/beside.tsv.

    benches/python_beside.py LIBRARY [SAMPLES]

Uses the current Python, py-spy if it is installed, `profiling.sampling` from 3.15 on, and perf to read the recording.
Each program calls `long` and `short`, which do work in the ratio 3:1, for a fixed number of turns, and prints the true
share of `long` and its own time. Each tool samples runs of the program at 199 Hz until it has SAMPLES samples (default
4,000) with one of the two functions on the stack. A row has the number of all samples and of these, the error of the
share in points, and its sigma. It also has the program's processor and wall-clock time, relative to interleaved runs
without a tool.
"""

import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

PROGRAM = """
import json, sys, time

def burn(count):
    total = 0
    for number in range(count):
        total += number * number
    return total

def key(value):
    return burn(40) - value

WORK = {
    "interpreted": lambda times: burn(2000 * times),
    "calls from C": lambda times: sorted(range(45 * times), key=key),
    "in C": lambda times: sum(range(9000 * times)),
}[sys.argv[1]]

def long():
    return WORK(3)

def short():
    return WORK(1)

spent = {long: 0.0, short: 0.0}
began, clock = time.process_time(), time.perf_counter()
for _ in range(int(sys.argv[2])):
    for function in spent:
        before = time.thread_time()
        function()
        spent[function] += time.thread_time() - before
shares = [spent[long] / sum(spent.values()), time.process_time() - began, time.perf_counter() - clock]
print(json.dumps(shares), flush=True)
"""
PROGRAMS = ["interpreted", "calls from C", "in C"]
# #: Number of turns, which take two or three seconds.
TURNS = 20000
HZ = "199"
PY_SPY = os.path.join(os.path.dirname(sys.executable), "py-spy")


def run(command, **variables):
    """Runs the program; returns the true share, processor time and wall-clock time."""
    result = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
    lines = [line for line in result.stdout.splitlines() if line.startswith("[")]
    if not lines:
        sys.exit(f"{command}: {result.stdout} {result.stderr}")
    return json.loads(lines[-1])


def read_collapsed(path):
    """Returns pairs of weight and text of each stack."""
    with open(path) as lines:
        return [(float(line.rsplit(" ", 1)[1]), line) for line in lines if " " in line]


def run_ours(program, directory, library):
    data = f"{directory}/f.data"
    measured = run(program, LD_PRELOAD=library, JITLISTEN="image", JITLISTEN_RECORD=f"{data},hz={HZ}")
    text = subprocess.run(
        ["perf", "script", "--no-inline", "--max-stack", "1024", "-F", "period,ip,sym", "-i", data],
        capture_output=True,
        text=True,
    ).stdout
    stacks = [block.split(None, 1) for block in text.split("\n\n") if block.strip()]
    return measured, [(float(period.rstrip(":")), frames) for period, frames in stacks]


def run_py_spy(program, directory, _library):
    measured = run([PY_SPY, "record", "-r", HZ, "-f", "raw", "-o", f"{directory}/raw", "--", *program])
    return measured, read_collapsed(f"{directory}/raw")


def run_profiling(program, directory, _library):
    command = [
        sys.executable,
        "-m",
        "profiling.sampling",
        "run",
        "-r",
        HZ,
        "--mode",
        "cpu",
        "--collapsed",
        "-o",
        f"{directory}/collapsed",
    ]
    measured = run([*command, *program[1:]])
    return measured, read_collapsed(f"{directory}/collapsed")


def available_tools():
    runners = {"jitlisten": run_ours}
    if os.path.exists(PY_SPY):
        runners["py-spy"] = run_py_spy
    if sys.version_info >= (3, 15) and importlib.util.find_spec("profiling.sampling"):
        runners["profiling.sampling"] = run_profiling
    return runners


def main():
    library, min_samples = os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 4000
    print("python\tprogram\ttool\tsamples\tbelow one of both\terror, points\tsigma\tprocessor time\ttime by the clock")
    with tempfile.TemporaryDirectory() as directory:
        script = f"{directory}/program.py"
        with open(script, "w") as file:
            file.write(PROGRAM)
        for name in PROGRAMS:
            program = [sys.executable, script, name, str(TURNS)]
            for tool, profile in available_tools().items():
                true_shares, samples, ratios, relevant_samples = [], [], [], 0
                # Each line of a collapsed file stands for as many samples as its weight says.
                count = lambda pairs: len(pairs) if tool == "jitlisten" else int(sum(weight for weight, _ in pairs))
                while relevant_samples < min_samples:
                    untooled = run(program)
                    measured, new_samples = profile(program, directory, library)
                    true_shares.append(measured[0])
                    samples += new_samples
                    ratios.append(
                        [tool_time / untooled_time for tool_time, untooled_time in zip(measured[1:], untooled[1:])]
                    )
                    relevant_samples = count([pair for pair in samples if re.search(r"\b(long|short)\b", pair[1])])
                weight_below = lambda word: sum(weight for weight, stack in samples if re.search(rf"\b{word}\b", stack))
                weights = {word: weight_below(word) for word in ("long", "short")}
                share = weights["long"] / sum(weights.values())
                error, sigma = 100 * (share - statistics.mean(true_shares)), 100 * (0.1875 / relevant_samples) ** 0.5
                processor, clock = (statistics.median(column) for column in zip(*ratios))
                cells = [
                    "%d.%d" % sys.version_info[:2],
                    name,
                    tool,
                    count(samples),
                    relevant_samples,
                    f"{error:+.1f}",
                    f"{sigma:.1f}",
                    f"{processor:.3f}",
                    f"{clock:.3f}",
                ]
                print("\t".join(map(str, cells)), flush=True)


main()
