#!/usr/bin/env python3
"""Compares the coverage of random functions with coverage.py's of the same functions as Python, and adds them to
records/coverage-random.tsv.

    PYTHON coverage_random.py FUNCTIONS [FIRST SEED, default 1]

The current Python must have Numba, coverage.py and pytest (`ci/coverage.sh random`). Each module of 100 functions is
added when it has been compared, to the row of this Python. A row's commit is the last one that changed the measured
code; rows of older code are removed. Differences, and modules that do not end, are written to the standard error.
"""

import datetime
import importlib.metadata
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "python", "tests"))

import pytest
from test_coverage_random import differences

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = ROOT / "records/coverage-random.tsv"
MEASURED_CODE = tuple("python/jitlisten/" + name for name in ("_coverage", "_numba", "coverage.py"))
# Numba compiles the functions of its library that the module calls, once in a process.
FUNCTIONS_PER_MODULE = 100
COLUMNS = ("python", "numba", "coverage", "functions", "differ", "modules", "seeds that differ", "commit", "date")


def git(*arguments):
    return subprocess.check_output(["git", "-C", ROOT, *arguments], text=True).strip()


def add(commit, compared, different, seed):
    """Adds a module to the row of this Python, and removes the rows of other commits."""
    key = ["%d.%d" % sys.version_info[:2], importlib.metadata.version("numba"), importlib.metadata.version("coverage")]
    rows = [line.split("\t") for line in RECORD.read_text().splitlines()[1:]] if RECORD.exists() else []
    rows = [row for row in rows if row[7] == commit]
    row = next((row for row in rows if row[:3] == key), None)
    if row is None:
        row = [*key, "0", "0", "0", "", commit, ""]
        rows.append(row)
    row[3:6] = [str(int(old) + new) for old, new in zip(row[3:6], (compared, len(different), 1))]
    if different:
        row[6] = " ".join([*row[6].split(), str(seed)])
    row[8] = datetime.date.today().isoformat()
    rows.sort(key=lambda row: [int(part) for part in row[0].split(".")])
    RECORD.write_text("\n".join("\t".join(row) for row in [COLUMNS, *rows]) + "\n")


def main(functions, first_seed="1"):
    if git("status", "--porcelain", "--", *MEASURED_CODE):
        sys.exit("uncommitted changes of the measured code")
    commit = git("log", "-1", "--format=%h", "--abbrev=7", "--", *MEASURED_CODE)
    seed, total = int(first_seed), 0
    os.environ["NUMBA_OPT"] = "0"  # Optimization does not affect the measurement, but would take most of the time.
    while total < int(functions):
        try:
            with tempfile.TemporaryDirectory() as directory:
                found, compared = differences(directory, seed, FUNCTIONS_PER_MODULE)
        except (subprocess.TimeoutExpired, pytest.skip.Exception) as error:
            print("%d: %s" % (seed, error), file=sys.stderr, flush=True)
            seed += 1
            continue
        if found:
            print("\n".join(difference.text for difference in found), file=sys.stderr, flush=True)
        add(commit, compared, {difference.function for difference in found}, seed)
        total += compared
        seed += 1


main(*sys.argv[1:])
