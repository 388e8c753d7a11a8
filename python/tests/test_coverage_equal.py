"""Compiled code is covered as coverage.py covers the same functions where they run as Python: line for line, arc for
arc."""

import json
import os
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(HERE, "coverage_cases", "measure.py")
PACKAGE = os.path.join(HERE, os.pardir, "jitlisten")


def measured(tmp_path, branch, truth="", **environment):
    out = tmp_path / ("truth" if truth else "compiled")
    environment = dict(
        os.environ,
        COVERAGE_TRUTH=truth,
        PYTHONPATH=os.path.dirname(PACKAGE),
        PYTHONDONTWRITEBYTECODE="1",
        **environment,
    )
    subprocess.run([sys.executable, PROGRAM, "cases", str(out), branch], check=True, env=environment)
    return json.loads(out.read_text())


def source(line):
    with open(os.path.join(HERE, "coverage_cases", "cases.py")) as file:
        return file.read().splitlines()[abs(line) - 1].strip()


def assert_equal(truth, found):
    missing, wrong = set(truth["missing"]), set(found["missing"])
    assert {line: source(line) for line in wrong - missing} == {}, "lines that ran and are not covered"
    assert {line: source(line) for line in missing - wrong} == {}, "lines that did not run and are covered"
    for ran, covered, what in ((truth, found, "not covered"), (found, truth, "did not run")):
        arcs = {tuple(arc) for arc in ran.get("arcs", ())} - {tuple(arc) for arc in covered.get("arcs", ())}
        assert {arc: source(arc[0]) for arc in arcs} == {}, what
    assert found.get("branches") == truth.get("branches")


@pytest.mark.parametrize("branch", ["", "branch"])
def test_equal(tmp_path, branch):
    truth, found = measured(tmp_path, branch, truth="1"), measured(tmp_path, branch)
    assert found["numba"] and not truth["numba"]
    assert len(truth["missing"]) > 50 and len(truth["statements"]) > 500
    assert_equal(truth, found)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is of Python 3.12")
def test_equal_with_the_core_of_sys_monitoring(tmp_path):
    # Arcs need Python 3.14.
    branch = "branch" if sys.version_info >= (3, 14) else ""
    found = measured(tmp_path, branch, COVERAGE_CORE="sysmon")
    assert_equal(measured(tmp_path, branch, truth="1"), found)


def test_equal_without_optimization(tmp_path):
    assert_equal(measured(tmp_path, "branch", truth="1"), measured(tmp_path, "branch", NUMBA_OPT="0"))
