"""Switching jitlisten on and off never makes a compilation fail, whoever compiles at that moment; nor does it hang."""

import subprocess

import pytest
from conftest import PATIENCE, PROGRAMS, python

#: Turns, and compilations meanwhile.
TURNS, COMPILATIONS = 1000, 20


@pytest.mark.parametrize("how", ["threads", "signals"])
def test_compilations_go_on(environment, tmp_path, how):
    words = [python(), PROGRAMS / "switching.py", how, TURNS, COMPILATIONS, tmp_path]
    done = subprocess.run(
        list(map(str, words)), env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    turns, _, compilations, _, *fine = done.stdout.split()
    assert fine == ["fine"] and int(turns) >= TURNS and int(compilations) >= COMPILATIONS, done.stdout
