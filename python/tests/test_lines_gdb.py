"""gdb on code with line tables, without the native library: LLVM hands its objects to gdb itself."""

import os
import shutil
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = """import jitlisten._lines
jitlisten._lines.install()
from numba import njit

@njit
def inner(x):
    for _ in range(50):
        x = x * 0.999 + 1.5 / (x + 2.5)
    return x

@njit
def outer(n):
    s = 0.0
    for i in range(n):
        s += inner(i)
    return s

outer(9)
"""

pytest.importorskip("numba")


def test_a_breakpoint_on_a_line_and_the_lines_of_the_backtrace(tmp_path):
    if shutil.which("gdb") is None:
        if os.environ.get("CI"):
            pytest.fail("gdb is needed")
        pytest.skip("gdb is needed")
    (tmp_path / "prog.py").write_text(PROGRAM)
    command = ["gdb", "-nx", "-q", "-batch"]
    for words in ("set debuginfod enabled off", "set breakpoint pending on", "break prog.py:9", "run", "bt 3", "info line"):
        command += ["-ex", words]
    environment = dict(os.environ, PYTHONPATH=os.path.join(HERE, os.pardir))
    done = subprocess.run(
        command + ["--args", sys.executable, "prog.py"],
        cwd=str(tmp_path), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300,
    )
    text = done.stdout.decode("utf-8", "replace")
    assert 'Line 9 of "prog.py" starts at address' in text, text
    frames = [line for line in text.splitlines() if line.startswith("#")]
    assert "inner" in frames[0] and frames[0].endswith("prog.py:9"), frames
    assert "outer" in frames[1] and frames[1].endswith("prog.py:15"), frames
    assert "cpython::" in frames[2] and frames[2].endswith("prog.py:12"), frames
