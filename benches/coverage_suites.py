#!/usr/bin/env python3
"""Coverage of third-party test suites with and without the plugin, written to records/coverage.tsv.

    PYTHON coverage_suites.py SOURCES [ROUNDS, default 3; 0: do not measure times] [SUITE...]

The current Python must have Numba, pytest-cov and the packages. SOURCES is the directory of the unpacked source
distributions: most wheels contain no tests. `ci/coverage.sh suites` provides all of it.

A session is `pytest --cov --cov-branch` in its own process, with an empty Numba cache. The first three sessions yield
lines and branches: with NUMBA_DISABLE_JIT=1, with the plugin, and without it. NUMBA_DISABLE_JIT shows coverage.py's
result for the functions as Python; it does not apply to `vectorize`, `guvectorize` and `overload`, and some packages
define other functions with it. So differences are also counted in the functions that ran both ways. Then come rounds of
sessions without the plugin, with it, and without it again (A/A). Times are processor time including children, and that
of Numba's compilations; each ratio compares sessions of the same round. A suite is skipped if a session of it takes too
long.

A session loads this file as a plugin of pytest, which measures the compilations.
"""

import ast
import datetime
import importlib.metadata
import importlib.util
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
from typing import NamedTuple, Optional, Tuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = ROOT / "records/coverage.tsv"
SESSION_SECONDS = 900
_COMPILE_TIMES = "JITLISTEN_COMPILE_TIMES"


class Suite(NamedTuple):
    package: str
    # Test files, relative to the package or to the directory of its source distribution.
    tests: Tuple[str, ...]
    # Directories to measure, relative to the package.
    directories: Tuple[str, ...] = ("",)
    # Name of the directory of the source distribution, without the version; `None` if the package has tests.
    source: Optional[str] = None


SUITES = {
    "quantecon": Suite(
        "quantecon",
        (
            "optimize/tests/test_root_finding.py",
            "optimize/tests/test_scalar_max.py",
            "optimize/tests/test_pivoting.py",
            "optimize/tests/test_lcp_lemke.py",
            "markov/tests/test_gth_solve.py",
        ),
        ("optimize/", "markov/"),
    ),
    "numba-stats": Suite("numba_stats", ("tests/test_norm.py", "tests/test_truncexpon.py"), source="numba_stats"),
    "sparse": Suite(
        "sparse",
        tuple("numba_backend/tests/test_%s.py" % name for name in ("coo_numba", "compressed_2d", "conversion")),
        ("numba_backend/",),
    ),
    "numba-celltree": Suite(
        "numba_celltree",
        (
            "tests/test_algorithms",
            "tests/test_celltree_utils.py",
            "tests/test_geometry_utils.py",
            "tests/test_utils.py",
        ),
        source="numba_celltree",
    ),
    "vector": Suite("vector", ("tests/backends/test_numba_object.py",), ("backends/",), source="vector"),
    "clifford": Suite("clifford", ("test/test_numba_extensions.py", "test/test_layout.py", "test/test_degenerate.py")),
    "mapclassify": Suite("mapclassify", ("tests/test_mapclassify.py",)),
    "pyts": Suite(
        "pyts",
        ("metrics/tests", "approximation/tests", "decomposition/tests"),
        ("metrics/", "approximation/", "decomposition/"),
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
    "taken only compiled",
    "taken only as Python",
    "lines that differ in functions that ran both ways",
    "branches that do",
    "time with : without",
    "A/A",
    "compile time with : without",
    "A/A of it",
    "rounds",
    "commit",
    "date",
)


class Functions:
    """Functions of a package, by the lines of their bodies."""

    def __init__(self, package):
        self._package, self._files = package, {}

    def at(self, name, line):
        """Returns the innermost function of a line. Its line is 0 for the module."""
        if name not in self._files:
            self._files[name] = first_line_by_line = {}
            # Outer functions come first.
            for node in ast.walk(ast.parse((self._package / name).read_text())):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    body = range(node.body[0].lineno, node.end_lineno + 1)
                    first_line_by_line.update(dict.fromkeys(body, node.lineno))
        return name, self._files[name].get(abs(line), 0)

    def differing(self, sessions, kind):
        """Returns lines or arcs that differ between two sessions, of functions that ran in both."""
        ran = set.intersection(*({self.at(*line) for line in session.lines} for session in sessions))
        first, second = (getattr(session, kind) for session in sessions)
        return {
            (name, place)
            for name, place in first ^ second
            if self.at(name, place if isinstance(place, int) else place[0]) in ran
        }


class Session:
    """One run of a suite's tests, with its coverage."""

    def __init__(self, suite, sources, mode):
        definition = SUITES[suite]
        package = pathlib.Path(importlib.util.find_spec(definition.package).origin).parent
        base = package
        if definition.source:
            base = sources / ("%s-%s" % (definition.source, importlib.metadata.version(suite)))
        with tempfile.TemporaryDirectory() as directory:
            rc = pathlib.Path(directory, "rc")
            plugin = "plugins = jitlisten.coverage\n" if mode == "with" else ""
            rc.write_text("[run]\nomit = */tests/*,*/test/*\n%s[report]\nexclude_lines = never excluded\n" % plugin)
            command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", "/"]
            command += ["-p", "coverage_suites"]
            command += [
                "-vv",
                "--tb=line",
                "--cov=" + definition.package,
                "--cov-branch",
                "--cov-config",
                rc,
                "--cov-report=json:" + directory + "/found",
            ]
            command += [base / test for test in definition.tests]
            environment = dict(os.environ, NUMBA_CACHE_DIR=directory + "/cache", COVERAGE_FILE=directory + "/data")
            environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "python"), str(ROOT / "benches")])
            environment[_COMPILE_TIMES] = directory + "/compile"
            if mode == "as Python":
                environment["NUMBA_DISABLE_JIT"] = "1"
            with open(directory + "/said", "w+") as output:
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                subprocess.run(
                    command, cwd=directory, env=environment, stdout=output, stderr=output, timeout=SESSION_SECONDS
                )
                usage = resource.getrusage(resource.RUSAGE_CHILDREN)
                output.seek(0)
                text = output.read()
            self.seconds = usage.ru_utime + usage.ru_stime - before.ru_utime - before.ru_stime
            compile_times = pathlib.Path(directory, "compile")
            self.compile_seconds = float(compile_times.read_text()) if compile_times.exists() else 0.0
            self.results = dict(re.findall(r"^(\S+::.*?) (PASSED|FAILED|SKIPPED|ERROR|XFAIL|XPASS) +\[", text, re.M))
            if not self.results:
                sys.exit(text)
            files = json.loads(pathlib.Path(directory, "found").read_text())["files"]
        prefixes = tuple(str(package / directory) for directory in definition.directories)
        selected_files = [
            (os.path.relpath(path, package), coverage)
            for path, coverage in ((os.path.abspath(name), coverage) for name, coverage in files.items())
            if path.startswith(prefixes)
        ]

        def all_of(key):
            return {
                (name, each if isinstance(each, int) else tuple(each))
                for name, coverage in selected_files
                for each in coverage[key]
            }

        self.package = package
        self.lines, self.arcs = all_of("executed_lines"), all_of("executed_branches")
        self.statements = len(self.lines | all_of("missing_lines"))
        self.branches = len(self.arcs | all_of("missing_branches"))


class _Compilations:
    """Processor time of Numba's compilations: the time in which a thread holds the lock of the compiler."""

    def __init__(self):
        self.seconds = 0.0
        self._depth, self._started = 0, 0.0

    def notify(self, event):
        if event.is_start and self._depth == 0:
            self._started = time.thread_time()
        self._depth += 1 if event.is_start else -1
        if self._depth == 0:
            self.seconds += time.thread_time() - self._started


def _measure_compilations():
    # At once, because a package may compile functions when it is imported.
    from numba.core import event

    compilations = _Compilations()
    event.Listener.register(_Compilations)
    event.register("numba:compiler_lock", compilations)
    return compilations


_compilations = _measure_compilations() if _COMPILE_TIMES in os.environ else None


def pytest_sessionfinish(session):
    pathlib.Path(os.environ[_COMPILE_TIMES]).write_text(str(_compilations.seconds))


def median_and_range(ratios):
    return "%.3f [%.3f, %.3f]" % (statistics.median(ratios), min(ratios), max(ratios)) if ratios else ""


def measure(suite, sources, rounds):
    as_python, with_plugin, without = (Session(suite, sources, mode) for mode in ("as Python", "with", "without"))
    ratios, repeat_ratios, compile_ratios, compile_repeat_ratios = [], [], [], []
    for _ in range(rounds):
        without, with_plugin, repeat = (Session(suite, sources, mode) for mode in ("without", "with", "without"))
        ratios.append(2 * with_plugin.seconds / (without.seconds + repeat.seconds))
        repeat_ratios.append(repeat.seconds / without.seconds)
        compile_ratios.append(2 * with_plugin.compile_seconds / (without.compile_seconds + repeat.compile_seconds))
        compile_repeat_ratios.append(repeat.compile_seconds / without.compile_seconds)
        sessions = (without, with_plugin, repeat)
        print(suite, *("%.2f (%.2f)" % (each.seconds, each.compile_seconds) for each in sessions), file=sys.stderr)
    tests = without.results.keys() | with_plugin.results.keys()
    functions = Functions(with_plugin.package)
    differing = [functions.differing((with_plugin, as_python), kind) for kind in ("lines", "arcs")]
    for path, place in sorted(differing[0]) + sorted(differing[1]):
        is_compiled = (path, place) in with_plugin.lines | with_plugin.arcs
        print(suite, path, place, "only compiled" if is_compiled else "only as Python", file=sys.stderr)
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
        "taken without": len(without.arcs),
        "taken with": len(with_plugin.arcs),
        "taken as Python": len(as_python.arcs),
        "taken only compiled": len(with_plugin.arcs - as_python.arcs),
        "taken only as Python": len(as_python.arcs - with_plugin.arcs),
        "lines that differ in functions that ran both ways": len(differing[0]),
        "branches that do": len(differing[1]),
        "time with : without": median_and_range(ratios),
        "A/A": median_and_range(repeat_ratios),
        "compile time with : without": median_and_range(compile_ratios),
        "A/A of it": median_and_range(compile_repeat_ratios),
        "rounds": rounds,
        "commit": subprocess.check_output(["git", "-C", ROOT, "rev-parse", "--short=7", "HEAD"], text=True).strip(),
        "date": datetime.date.today().isoformat(),
    }


def main(sources, rounds="3", *suites):
    for suite in suites or SUITES:
        try:
            row = measure(suite, pathlib.Path(sources).resolve(), int(rounds))
        except subprocess.TimeoutExpired as error:
            print(suite, error, file=sys.stderr)
            continue
        rows = RECORD.read_text().splitlines()[1:] if RECORD.exists() else []
        rows = [line for line in rows if line.split(" ")[0] != suite]
        rows.append("\t".join(str(row[column]) for column in COLUMNS))
        RECORD.write_text("\n".join(["\t".join(COLUMNS), *rows]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
