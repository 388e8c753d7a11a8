#!/usr/bin/env python3
"""Coverage of three third-party test suites with and without the plugin, written to records/coverage.tsv.

    PYTHON coverage_suites.py NUMBA_STATS_SOURCE [ROUNDS, default 3] [SUITE...]

The current Python must have Numba, pytest-cov and the packages. The tests of numba-stats are only in its source
distribution. `ci/coverage.sh suites` provides all of it.

A session is `pytest --cov --cov-branch` in its own process, with an empty Numba cache. Sessions run in turns: without
the plugin, with it, and without it again (A/A). Times are processor time including children; each ratio compares
sessions of the same round. An additional session with NUMBA_DISABLE_JIT=1 shows coverage.py's result for the functions
as Python.
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
# For each package: the directories to measure, and its test modules or files.
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
    """One run of a suite's tests, with its coverage."""

    def __init__(self, suite, source, mode):
        package, folders, tests = SUITES[suite]
        with tempfile.TemporaryDirectory() as directory:
            rc = pathlib.Path(directory, "rc")
            plugin = "plugins = jitlisten.coverage\n" if mode == "with" else ""
            rc.write_text("[run]\nomit = */tests/*\n%s[report]\nexclude_lines = never excluded\n" % plugin)
            command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", "/"]
            command += [
                "-vv",
                "--tb=line",
                "--cov=" + package,
                "--cov-branch",
                "--cov-config",
                rc,
                "--cov-report=json:" + directory + "/found",
            ]
            if suite == "numba-stats":
                command += [os.path.join(source, "tests", test) for test in tests]
            else:
                command += ["--pyargs"] + ["%s.%s" % (suite, test) for test in tests]
            environment = dict(os.environ, PYTHONPATH=str(ROOT / "python"), NUMBA_CACHE_DIR=directory + "/cache")
            environment["COVERAGE_FILE"] = directory + "/data"
            if mode == "as Python":
                environment["NUMBA_DISABLE_JIT"] = "1"
            with open(directory + "/said", "w+") as output:
                process = subprocess.Popen(command, cwd=directory, env=environment, stdout=output, stderr=output)
                usage = os.wait4(process.pid, 0)[2]
                process.returncode = 0
                output.seek(0)
                text = output.read()
            self.seconds = usage.ru_utime + usage.ru_stime
            self.results = dict(re.findall(r"^(\S+::.*?) (PASSED|FAILED|SKIPPED|ERROR|XFAIL|XPASS) +\[", text, re.M))
            if not self.results:
                sys.exit(text)
            files = json.loads(pathlib.Path(directory, "found").read_text())["files"]
        selected_files = [
            (name, coverage) for name, coverage in files.items() if any(folder in name for folder in folders)
        ]
        self.lines = {(name, line) for name, coverage in selected_files for line in coverage["executed_lines"]}
        missing = {(name, line) for name, coverage in selected_files for line in coverage["missing_lines"]}
        self.statements = len(self.lines | missing)
        self.arcs = sum(len(coverage["executed_branches"]) for _, coverage in selected_files)
        self.branches = self.arcs + sum(len(coverage["missing_branches"]) for _, coverage in selected_files)


def measure(suite, source, rounds):
    as_python = Session(suite, source, "as Python")
    ratios, repeat_ratios = [], []
    for _ in range(rounds):
        without, with_plugin, repeat = (Session(suite, source, mode) for mode in ("without", "with", "without"))
        ratios.append(2 * with_plugin.seconds / (without.seconds + repeat.seconds))
        repeat_ratios.append(repeat.seconds / without.seconds)
        print(suite, *("%.2f" % session.seconds for session in (without, with_plugin, repeat)), file=sys.stderr)
    tests = without.results.keys() | with_plugin.results.keys()
    for path, line in sorted(with_plugin.lines ^ as_python.lines):
        print(
            suite,
            path,
            line,
            "only compiled" if (path, line) in with_plugin.lines else "only as Python",
            file=sys.stderr,
        )
    return {
        "suite": "%s %s" % (suite, importlib.metadata.version(suite)),
        "environment": ", ".join(
            "%s %s" % (name, importlib.metadata.version(name)) for name in ("numba", "coverage", "pytest-cov")
        ),
        "tests": len(tests),
        "other results": sum(without.results.get(test) != with_plugin.results.get(test) for test in tests),
        "statements": with_plugin.statements,
        "covered without": len(without.lines),
        "covered with": len(with_plugin.lines),
        "as Python": len(as_python.lines),
        "covered only compiled": len(with_plugin.lines - as_python.lines),
        "covered only as Python": len(as_python.lines - with_plugin.lines),
        "branches": with_plugin.branches,
        "taken without": without.arcs,
        "taken with": with_plugin.arcs,
        "taken as Python": as_python.arcs,
        "time with : without": "%.3f [%.3f, %.3f]" % (statistics.median(ratios), min(ratios), max(ratios)),
        "A/A": "%.3f [%.3f, %.3f]" % (statistics.median(repeat_ratios), min(repeat_ratios), max(repeat_ratios)),
        "rounds": rounds,
        "commit": subprocess.check_output(["git", "-C", ROOT, "rev-parse", "--short=7", "HEAD"], text=True).strip(),
        "date": datetime.date.today().isoformat(),
    }


def main(source, rounds="3", *suites):
    rows = RECORD.read_text().splitlines()[1:] if RECORD.exists() else []
    for suite in suites or SUITES:
        row = measure(suite, os.path.abspath(source), int(rounds))
        rows = [line for line in rows if line.split(" ")[0] != suite]
        rows.append("\t".join(str(row[column]) for column in COLUMNS))
        RECORD.write_text("\n".join(["\t".join(COLUMNS), *rows]) + "\n")


main(*sys.argv[1:])
