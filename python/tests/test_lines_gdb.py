"""gdb on code with line tables, without the native library, because LLVM itself registers its objects with gdb."""

import os
import re
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


def run_gdb(tmp_path, *commands, program=PROGRAM, file="prog.py", line=9):
    """Runs gdb commands after the program has stopped at a line; returns gdb's output. The default is the loop of
    `inner`."""
    if shutil.which("gdb") is None:
        if os.environ.get("CI"):
            pytest.fail("gdb is needed")
        pytest.skip("gdb is needed")
    (tmp_path / "prog.py").write_text(program)
    command = ["gdb", "-nx", "-q", "-batch"]
    for gdb_command in (
        "set debuginfod enabled off",
        "set breakpoint pending on",
        "break %s:%d" % (file, line),
        "run",
    ) + commands:
        command += ["-ex", gdb_command]
    environment = dict(os.environ, PYTHONPATH=os.path.join(HERE, os.pardir))
    result = subprocess.run(
        command + ["--args", sys.executable, "prog.py", "0"],
        cwd=str(tmp_path),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
    )
    return result.stdout.decode("utf-8", "replace")


def test_a_breakpoint_on_a_line_and_the_lines_of_the_backtrace(tmp_path):
    output = run_gdb(tmp_path, "bt 3", "info line")
    assert 'Line 9 of "prog.py" starts at address' in output, output
    frames = [line for line in output.splitlines() if line.startswith("#")]
    assert "__main__.inner" in frames[0] and frames[0].endswith("prog.py:9"), frames
    assert "__main__.outer" in frames[1] and frames[1].endswith("prog.py:15"), frames
    assert "cpython::" in frames[2] and frames[2].endswith("prog.py:12"), frames


def test_an_inlined_call_is_a_frame(tmp_path):
    with open(os.path.join(HERE, "lines", "hot.py")) as file:
        program = file.read()
    hot_line, call_line = (program[: program.index("# " + mark)].count("\n") + 1 for mark in ("hot", "call"))
    output = run_gdb(tmp_path, "bt 3", program=program, line=hot_line)
    frames = [line for line in output.splitlines() if line.startswith("#")]
    assert "__main__.inner" in frames[0] and frames[0].endswith("prog.py:%d" % hot_line), output
    # The inlined frame shares the address of its caller.
    assert "__main__.outer" in frames[1] and frames[1].endswith("prog.py:%d" % call_line) and " in " not in frames[1], (
        frames
    )
    assert " in cpython::" in frames[2], frames


def test_what_numba_inlines_itself_is_a_frame(tmp_path):
    (tmp_path / "callee.py").write_text(
        "from numba import njit\n\n@njit(inline='always')\ndef chain(x):\n    for _ in range(50):\n"
        "        x = x * 0.999 + 1.5 / (x + 2.5)\n    return x\n"
    )
    program = PROGRAM.replace("@njit\ndef outer", "import callee\n\n@njit\ndef outer").replace(
        "s += inner(i)", "s += callee.chain(i)"
    )
    output = run_gdb(tmp_path, "bt 3", program=program, file="callee.py", line=6)
    frames = [line for line in output.splitlines() if line.startswith("#")]
    assert "callee.chain" in frames[0] and frames[0].endswith("callee.py:6"), output
    assert "__main__.outer" in frames[1] and frames[1].endswith("prog.py:17"), frames
    assert " in cpython::" in frames[2], frames


def test_stepping_goes_from_line_to_line(tmp_path):
    output = run_gdb(tmp_path, "next", "next", "step", "step")
    shown_lines = [line.split("\t")[0] for line in output.splitlines() if re.match(r"\d+\t", line)]
    assert len(shown_lines) == 5 and shown_lines[0] == "9" and len(set(shown_lines)) > 1, output
    # The shown lines belong to the program, in whatever order LLVM scheduled them.
    assert set(shown_lines) <= {"8", "9", "10", "14", "15"}, shown_lines


def test_a_breakpoint_in_compiled_code_that_is_there(tmp_path):
    output = run_gdb(tmp_path, "delete", "break prog.py:15", "info line prog.py:15", "continue", "bt 1")
    assert re.search(r"Breakpoint 2 at 0x[0-9a-f]+: .*prog\.py, line 15", output), output
    assert 'Line 15 of "prog.py" starts at address' in output, output
    (frame,) = [line for line in output.splitlines() if line.startswith("#0")]
    assert frame.endswith("prog.py:15"), frame
