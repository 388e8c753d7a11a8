#!/usr/bin/env python3
"""Checks that each line of Numba's code is attributed the time that it takes.

    run.py [--recorder ours,perf] [--seconds S] [--seed N] [--rate HZ] [--write FILE] [PROGRAM...]

Programs (`programs/`) time their own phases while they are recorded (`phases.py`). For each phase, this script adds up
the periods of the samples whose stack has a line of the phase. The sum must be within 10 % of the measured time plus
three standard errors. So must the sum of all samples and the CPU time that the kernel counted (`whole_program`),
without that of the recorder's own thread and of children. The programs `clock_*` are about the clock: bursts between
naps, threads and children shorter than a sample, and waits. A comment `# record: OPTION...` has the recorder's options
for a program, which then has no `whole_program`. At most 3 % of the samples in compiled code may have no line. The
programs run with the Numba of the current Python. Needs `cargo build --release`, and perf for the second recorder.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from phases import UNRECORDED

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PROGRAMS = HERE / "programs"
COMMAND = os.environ.get("JITLISTEN_COMMAND", str(ROOT / "target" / "release" / "jitlisten"))
TOLERANCE = 0.10
WHOLE_PROGRAM = "whole_program"
SIGMAS = 3
LINE_ZERO = 3.0
#: Phases that perf cannot measure: OpenBLAS's assembly code lacks unwind tables, so its callers are unknown; Python
#: functions have no lines.
UNMEASURABLE = {
    ("perf", "linear_algebra", "norm"),
    ("perf", "ahead_of_time", "divided"),
    ("perf", "ahead_of_time", "hypotenuse"),
}

Phase = collections.namedtuple("Phase", "name truth measured sigma")
Verdict = collections.namedtuple("Verdict", "phases line_zero compiled")


def find_phase_lines(program):
    """Returns `{line: name of the phase}`."""
    phases_by_line = {}
    for number, text in enumerate(program.read_text().splitlines(), 1):
        match = re.search(r"# ([a-z_0-9]+)$", text)
        if match:
            phases_by_line[number] = match[1]
    return phases_by_line


def find_options(program):
    """Returns the options that our recorder needs for a program."""
    match = re.search(r"^# record: (.+)$", program.read_text(), re.MULTILINE)
    return match[1].split() if match else []


def record(program, recorder, seconds, seed, rate, directory):
    """Records a program; returns the times of its phases, and the recordings of its processes."""
    data, truth = directory / "perf.data", directory / "truth.json"
    environment = dict(os.environ, PHASES="%s:%d:%s" % (seconds, seed, truth), JITLISTEN_DIR=str(directory))
    path = os.pathsep.join([str(HERE)] + os.environ.get("PYTHONPATH", "").split(os.pathsep))
    environment.update(PYTHONPATH=path, NUMBA_NUM_THREADS="2", NUMBA_CACHE_DIR=str(directory / "cache"))
    python = [sys.executable, str(program)]
    if recorder == "ours":
        command = [COMMAND, "record", "-r", str(rate), *find_options(program), "-o", str(data), "--"] + python
    else:
        perf = ["perf", "record", "-q", "-e", "cpu-clock", f"-F{rate}", "--call-graph=dwarf,16384", "-o", str(data)]
        command = [*perf, "--", COMMAND, "run", "--", *python]
    before = children_cpu_seconds()
    result = subprocess.run(
        command, env=environment, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900
    )
    if result.returncode or not truth.exists():
        raise RuntimeError("%s: %s" % (program.name, result.stdout.decode(errors="replace")[-2000:]))
    phases = json.loads(truth.read_text())
    unrecorded_seconds, _ = phases.pop(UNRECORDED)
    if recorder == "ours" and not find_options(program):
        phases[WHOLE_PROGRAM] = [children_cpu_seconds() - before - unrecorded_seconds, 1]
    return phases, [path for path in sorted(directory.glob("perf.data*")) if path.is_file()]


def children_cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def judge(program, truth, recordings):
    """Compares a recording with the times that the program measured."""
    exported = subprocess.run(
        [COMMAND, "export", "-f", "speedscope", *map(str, recordings)], stdout=subprocess.PIPE, check=True, timeout=600
    )
    profile = json.loads(exported.stdout)
    frames, phases_by_line = profile["shared"]["frames"], find_phase_lines(program)
    names = [
        phases_by_line.get(frame.get("line")) if os.path.basename(frame.get("file", "")) == program.name else None
        for frame in frames
    ]
    seconds = collections.Counter()
    compiled = line_zero = 0
    for thread in profile["profiles"]:
        for stack, weight in zip(thread["samples"], thread["weights"]):
            for name in {names[frame] for frame in stack} - {None}:
                seconds[name] += weight / 1e9
            seconds[WHOLE_PROGRAM] += weight / 1e9
            leaf = frames[stack[-1]] if stack else {"name": ""}
            if leaf["name"].endswith(("_[j]", "_[i]")):
                compiled += weight
                line_zero += weight if "file" in leaf and "line" not in leaf else 0
    # Use the median, because merging equal consecutive samples would inflate the mean.
    period = statistics.median(weight for thread in profile["profiles"] for weight in thread["weights"]) / 1e9
    phases = [Phase(name, spent, seconds[name], sigma(spent, runs, period)) for name, (spent, runs) in truth.items()]
    return Verdict(phases, 100 * line_zero / max(compiled, 1), compiled / 1e9)


def sigma(seconds, runs, period):
    """Standard error of a phase's time, as estimated from samples. Each run starts and ends between two samples. In
    addition, up to a tenth of the samples may be on another line; the number of these has a binomial distribution."""
    share = TOLERANCE
    return (runs * period * period / 6 + seconds * period * share * (1 - share)) ** 0.5


def is_true(phase):
    return abs(phase.measured - phase.truth) <= TOLERANCE * phase.truth + SIGMAS * phase.sigma


def measured(program, recorder, seconds=1.5, seed=1, rate=999):
    with tempfile.TemporaryDirectory(prefix="truth-") as directory:
        truth, recordings = record(program, recorder, seconds, seed, rate, pathlib.Path(directory))
        return judge(program, truth, recordings)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recorder", default="ours,perf")
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--rate", type=int, default=999)
    parser.add_argument("--write", type=pathlib.Path, help="append rows to this table")
    parser.add_argument("program", nargs="*")
    options = parser.parse_args()
    programs = [PROGRAMS / (name + ".py") for name in options.program] or sorted(PROGRAMS.glob("*.py"))
    import numba

    commit = (
        subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE)
        .stdout.decode()
        .strip()
    )
    failures = 0
    for recorder in options.recorder.split(","):
        for program in programs:
            if recorder == "perf" and program.stem.startswith("clock_"):
                continue
            try:
                verdict = measured(program, recorder, options.seconds, options.seed, options.rate)
            except Exception as error:  # continue with the other programs
                print("%s %s: %s" % (recorder, program.stem, error))
                failures += 1
                continue
            for phase in verdict.phases:
                is_good = is_true(phase)
                failures += not is_good and (recorder, program.stem, phase.name) not in UNMEASURABLE
                row = (
                    numba.__version__,
                    recorder,
                    program.stem,
                    phase.name,
                    "%.3f" % phase.truth,
                    "%.3f" % phase.measured,
                    "%.3f" % (phase.measured / phase.truth),
                    "%.3f" % (phase.sigma / phase.truth),
                    "%.1f" % verdict.line_zero,
                    "yes" if is_good and verdict.line_zero <= LINE_ZERO else "no",
                    commit,
                    time.strftime("%Y-%m-%d"),
                )
                print("\t".join(row), flush=True)
                if options.write:
                    with options.write.open("a") as file:
                        file.write("\t".join(row) + "\n")
            failures += verdict.line_zero > LINE_ZERO
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
