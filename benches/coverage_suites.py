#!/usr/bin/env python3
"""Coverage of three test suites that others wrote, with the plugin and without it, into records/coverage.tsv.

    PYTHON coverage_suites.py NUMBA_STATS_SOURCE [ROUNDS, default 3] [SUITE...]

The interpreter that runs this has Numba, pytest-cov and the packages; the tests of numba-stats are in its source
distribution only. `ci/coverage.sh suites` provides all of it.

A session is `pytest --cov --cov-branch` in a process of its own, with an empty cache of Numba's. Sessions take turns:
without, with, without again (A/A). Time is processor time with that of children, ratios are of the two sessions of a
round. One session more has NUMBA_DISABLE_JIT=1: what coverage.py itself says of the functions as Python.
"""

import datetime
import importlib.metadata
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = ROOT / "records/coverage.tsv"
# The package, which of its folders are counted, and the modules or files with tests.
SUITES = {
    "quantecon": (
        "quantecon",
        ("/quantecon/optimize/", "/quantecon/markov/"),
        [
            "optimize.tests.test_root_finding",
            "optimize.tests.test_scalar_max",
            "optimize.tests.test_pivoting",
            "optimize.tests.test_lcp_lemke",
            "markov.tests.test_gth_solve",
        ],
    ),
    "numba-stats": ("numba_stats", ("/",), ["test_norm.py", "test_truncexpon.py"]),
    "sparse": (
        "sparse",
        ("/numba_backend/",),
        ["numba_backend.tests." + name for name in ("test_coo_numba", "test_compressed_2d", "test_conversion")],
    ),
}
COLUMNS = (
    "suite",
    "environment",
    "tests",
    "other results",
    "statements",
    "covered without",
    "covered with",
    "as Python",
    "covered only compiled",
    "covered only as Python",
    "branches",
    "taken without",
    "taken with",
    "taken as Python",
    "time with : without",
    "A/A",
    "rounds",
    "commit",
    "date",
)


class Session:
    """One run of a suite's tests."""

    def __init__(self, suite, source, mode):
        package, folders, tests = SUITES[suite]
        with tempfile.TemporaryDirectory() as place:
            rc = pathlib.Path(place, "rc")
            plugin = "plugins = jitlisten.coverage\n" if mode == "with" else ""
            rc.write_text("[run]\nomit = */tests/*\n%s[report]\nexclude_lines = never excluded\n" % plugin)
            words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", "/"]
            words += [
                "-vv", "--tb=line", "--cov=" + package, "--cov-branch", "--cov-config", rc,
                "--cov-report=json:" + place + "/found",
            ]
            if suite == "numba-stats":
                words += [os.path.join(source, "tests", test) for test in tests]
            else:
                words += ["--pyargs"] + ["%s.%s" % (suite, test) for test in tests]
            environment = dict(os.environ, PYTHONPATH=str(ROOT / "python"), NUMBA_CACHE_DIR=place + "/cache")
            environment["COVERAGE_FILE"] = place + "/data"
            if mode == "as Python":
                environment["NUMBA_DISABLE_JIT"] = "1"
            with open(place + "/said", "w+") as said:
                process = subprocess.Popen(words, cwd=place, env=environment, stdout=said, stderr=said)
                used = os.wait4(process.pid, 0)[2]
                process.returncode = 0
                said.seek(0)
                text = said.read()
            self.seconds = used.ru_utime + used.ru_stime
            self.results = dict(re.findall(r"^(\S+::.*?) (PASSED|FAILED|SKIPPED|ERROR|XFAIL|XPASS) +\[", text, re.M))
            if not self.results:
                sys.exit(text)
            files = json.loads(pathlib.Path(place, "found").read_text())["files"]
        each = [(name, found) for name, found in files.items() if any(folder in name for folder in folders)]
        self.lines = {(name, line) for name, found in each for line in found["executed_lines"]}
        missing = {(name, line) for name, found in each for line in found["missing_lines"]}
        self.statements = len(self.lines | missing)
        self.arcs = sum(len(found["executed_branches"]) for _, found in each)
        self.branches = self.arcs + sum(len(found["missing_branches"]) for _, found in each)


def measure(suite, source, rounds):
    truth = Session(suite, source, "as Python")
    ratios, again = [], []
    for _ in range(rounds):
        without, found, second = (Session(suite, source, mode) for mode in ("without", "with", "without"))
        ratios.append(2 * found.seconds / (without.seconds + second.seconds))
        again.append(second.seconds / without.seconds)
        print(suite, *("%.2f" % each.seconds for each in (without, found, second)), file=sys.stderr)
    tests = without.results.keys() | found.results.keys()
    for path, line in sorted(found.lines ^ truth.lines):
        print(suite, path, line, "only compiled" if (path, line) in found.lines else "only as Python", file=sys.stderr)
    return {
        "suite": "%s %s" % (suite, importlib.metadata.version(suite)),
        "environment": ", ".join(
            "%s %s" % (name, importlib.metadata.version(name)) for name in ("numba", "coverage", "pytest-cov")
        ),
        "tests": len(tests),
        "other results": sum(without.results.get(test) != found.results.get(test) for test in tests),
        "statements": found.statements,
        "covered without": len(without.lines),
        "covered with": len(found.lines),
        "as Python": len(truth.lines),
        "covered only compiled": len(found.lines - truth.lines),
        "covered only as Python": len(truth.lines - found.lines),
        "branches": found.branches,
        "taken without": without.arcs,
        "taken with": found.arcs,
        "taken as Python": truth.arcs,
        "time with : without": "%.3f [%.3f, %.3f]" % (statistics.median(ratios), min(ratios), max(ratios)),
        "A/A": "%.3f [%.3f, %.3f]" % (statistics.median(again), min(again), max(again)),
        "rounds": rounds,
        "commit": subprocess.check_output(["git", "-C", ROOT, "rev-parse", "--short=7", "HEAD"], text=True).strip(),
        "date": datetime.date.today().isoformat(),
    }


def main(source, rounds="3", *suites):
    rows = RECORD.read_text().splitlines()[1:] if RECORD.exists() else []
    for suite in suites or SUITES:
        row = measure(suite, os.path.abspath(source), int(rounds))
        rows = [each for each in rows if each.split(" ")[0] != suite]
        rows.append("\t".join(str(row[column]) for column in COLUMNS))
        RECORD.write_text("\n".join(["\t".join(COLUMNS), *rows]) + "\n")


main(*sys.argv[1:])
