"""Programs that time their own phases while they are recorded. The report must attribute each phase's time to its
lines.

This is a selection from `benches/truth/`; `make test-truth` runs all of them, also with perf's samples. Phases are
measured in the program's own CPU time, during the recorded run, so other processes do not influence the result. The
tolerance covers time that a sampler cannot observe.
"""

import os
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, os.pardir, os.pardir, "benches", "truth"))

import run

pytest.importorskip("numba")


@pytest.mark.parametrize("name", ["array_expressions", "branches", "jitclasses", "recursion", "reductions", "stencils"])
def test_the_seconds_of_each_phase_are_at_its_lines(name):
    assert os.path.exists(run.COMMAND), "make build makes it"
    verdict = run.measured(run.PROGRAMS / (name + ".py"), "ours", seconds=1.0)
    assert verdict.phases and verdict.compiled > 0.5
    assert [phase for phase in verdict.phases if not run.is_true(phase)] == []
    assert verdict.line_zero <= run.LINE_ZERO
