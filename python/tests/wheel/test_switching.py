"""Switching jitlisten on and off during compilation, from any thread or signal handler, neither fails the compilation
nor hangs."""

import subprocess

import pytest
from conftest import PROGRAMS, TEST_TIMEOUT_S, python

#: Minimum numbers of switches and of concurrent compilations.
TURNS, COMPILATIONS = 1000, 20


@pytest.mark.parametrize("switcher", ["threads", "signals"])
def test_compilations_go_on(environment, tmp_path, switcher):
    args = [python(), PROGRAMS / "switching.py", switcher, TURNS, COMPILATIONS, tmp_path]
    result = subprocess.run(
        list(map(str, args)), env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=TEST_TIMEOUT_S
    )
    assert result.returncode == 0, result.stderr
    turns, _, compilations, _, *outcome = result.stdout.split()
    assert outcome == ["fine"] and int(turns) >= TURNS and int(compilations) >= COMPILATIONS, result.stdout
