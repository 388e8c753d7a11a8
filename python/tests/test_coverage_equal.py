"""Coverage of compiled code must equal coverage.py's measurement of the same functions in the interpreter, line by line
and arc by arc."""

import json
import os
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(HERE, "coverage_cases", "measure.py")
PACKAGE = os.path.join(HERE, os.pardir, "jitlisten")


def measure_coverage(tmp_path, branch, truth="", **environment):
    output = tmp_path / ("truth" if truth else "compiled")
    environment = dict(
        os.environ,
        COVERAGE_TRUTH=truth,
        PYTHONPATH=os.path.dirname(PACKAGE),
        PYTHONDONTWRITEBYTECODE="1",
        **environment,
    )
    subprocess.run([sys.executable, PROGRAM, "cases", str(output), branch], check=True, env=environment)
    return json.loads(output.read_text())


def source_line(line):
    with open(os.path.join(HERE, "coverage_cases", "cases.py")) as file:
        return file.read().splitlines()[abs(line) - 1].strip()


def assert_equal(expected, actual):
    expected_missing, actual_missing = set(expected["missing"]), set(actual["missing"])
    assert {line: source_line(line) for line in actual_missing - expected_missing} == {}, (
        "lines that ran and are not covered"
    )
    assert {line: source_line(line) for line in expected_missing - actual_missing} == {}, (
        "lines that did not run and are covered"
    )
    for executed, covered, message in ((expected, actual, "not covered"), (actual, expected, "did not run")):
        arcs = {tuple(arc) for arc in executed.get("arcs", ())} - {tuple(arc) for arc in covered.get("arcs", ())}
        assert {arc: source_line(arc[0]) for arc in arcs} == {}, message
    assert actual.get("branches") == expected.get("branches")


@pytest.mark.parametrize("branch", ["", "branch"])
def test_equal(tmp_path, branch):
    expected, actual = measure_coverage(tmp_path, branch, truth="1"), measure_coverage(tmp_path, branch)
    assert actual["numba"] and not expected["numba"]
    assert len(expected["missing"]) > 50 and len(expected["statements"]) > 500
    assert_equal(expected, actual)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is of Python 3.12")
def test_equal_with_the_core_of_sys_monitoring(tmp_path):
    # This core measures branches from Python 3.14 on, but other ones than the C tracer, in interpreted code too.
    actual = measure_coverage(tmp_path, "", COVERAGE_CORE="sysmon")
    assert_equal(measure_coverage(tmp_path, "", truth="1"), actual)


def test_equal_without_optimization(tmp_path):
    assert_equal(measure_coverage(tmp_path, "branch", truth="1"), measure_coverage(tmp_path, "branch", NUMBA_OPT="0"))
