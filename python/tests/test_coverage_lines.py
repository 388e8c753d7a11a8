"""Coverage and line tables at the same time: neither changes the result of the other."""

import json
import os
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "lines"))

from compiled import PACKAGE, compiled_rows, run_python, write_module

LINES = "import jitlisten._lines as lines; lines.install()\n"
COVERAGE = "from jitlisten._coverage import patches; patches.install()\n"

KERNELS = """
import numpy as np
from numba import njit, prange, stencil

@njit(inline="always")
def clamp(x):
    if x < 0:
        return 0.0
    return x

@stencil
def mean(a):
    return (a[-1] + a[1]) / 2

@njit(parallel=True)
def kernel(a):
    total = 0.0
    for i in prange(a.size):
        if a[i] > 3:
            weight = 2.0
        else:
            weight = a[i] + 1
        total += clamp(a[i]) * weight
    smooth = mean(a)
    return total, smooth

@njit(forceobj=True, looplift=False)
def interpreted(items):
    total = 0
    for item in items:
        total += item
    return total

kernel(np.arange(9.0)), interpreted([1, 2])
"""


def measure(tmp_path, program):
    """Missing lines and arcs of the cases of `test_coverage_equal.py`."""
    out = tmp_path / "measured"
    program += "import runpy, sys; sys.argv[1:] = ['cases', %r, 'branch']\n" % str(out)
    program += "runpy.run_path(%r, run_name='__main__')\n" % os.path.join(HERE, "coverage_cases", "measure.py")
    program += "assert %r not in globals() or lines.status()['active']\n" % "lines"
    environment = dict(os.environ, PYTHONPATH=PACKAGE, PYTHONDONTWRITEBYTECODE="1")
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
    return json.loads(out.read_text())


def test_coverage_is_the_same_with_lines(tmp_path):
    assert measure(tmp_path, LINES) == measure(tmp_path, "")


@pytest.mark.parametrize("before, after", [(COVERAGE, ""), ("", COVERAGE)])
def test_lines_are_the_same_with_coverage(tmp_path, before, after):
    log = tmp_path / "log"
    stock, both = tmp_path / "stock", tmp_path / "both"
    for directory in (stock, both):
        directory.mkdir()
    without = compiled_rows(write_module(stock, KERNELS), stock)
    program = before + "import numba\n" + after + write_module(both, KERNELS)
    with_coverage = compiled_rows(program, both, JITLISTEN_LOG=str(log))
    # Coverage has code for statements that LLVM removes otherwise.
    assert without <= with_coverage and {name for name, _ in with_coverage} == {name for name, _ in without}
    assert not log.exists()


STORES = r"""
import re
from numba import njit
@njit
def f(x):
    if x > 1:
        y = x
    else:
        y = 2
    return y
f(1)
(text,) = f.inspect_llvm().values()
marks = re.search(r"jitlisten[.]coverage[.]1:[^:]+:[^:]+:([^|]+)[|]", text)[1].split(",")
lines = dict(re.findall(r"^(!\d+) = !DILocation[(]line: (\d+)", text, re.M))
addresses = dict(re.findall(r"^  (%\S+) = (getelementptr .*)", text, re.M))
selected = dict(re.findall(r"^  (%\S+) = select i1 (?:\S+ ){4}(%[^,\n]+)", text, re.M))
for pointer, location in re.findall(r"store i8 1, (?:i8[*]|ptr) (.+?), .*(!\d+)$", text, re.M):
    index = re.search(r"i64 (\d+)", addresses[selected[pointer]])
    print(marks[int(index[1]) if index else 0], lines[location])
"""


def test_stores_have_the_line_that_they_mark(tmp_path):
    # LLVM merges the stores of two branches: their address and line are then those of either, or none.
    output = run_python(write_module(tmp_path, COVERAGE + LINES + STORES), NUMBA_OPT="0")
    stores = {tuple(line.split()) for line in output.splitlines()}
    targets = [(int(mark.partition(">")[2]), int(line)) for mark, line in stores]
    assert len(stores) == 6 and all(line == target for target, line in targets if target > 0), stores


SWITCHED = """
from numba import njit
def compile(x):
    f = njit(lambda x: x + 1)
    f(x)
    (text,) = f.inspect_llvm().values()
    return "LineTablesOnly" in text, "jitlisten.coverage" in text
print(compile(1))
lines.remove()
print(compile(1))
lines.install()
print(compile(1))
"""


def test_lines_are_switched_while_coverage_is_on(tmp_path):
    program = write_module(tmp_path, COVERAGE + LINES + SWITCHED)
    assert run_python(program).splitlines() == ["(True, True)", "(False, True)", "(True, True)"]


DEFECTS = """
from jitlisten._coverage import hooks, unmeasured
from jitlisten._lines import phis, stencils
from jitlisten._numba import inlined
def fail(*arguments): raise ValueError("a defect")
phis.find_joins = phis.relocate = stencils.relocate = inlined.mark_call = hooks.insert_marks = fail
"""


def test_a_defect_costs_lines_or_marks_but_no_compilation(tmp_path):
    log = tmp_path / "log"
    program = (
        LINES
        + COVERAGE
        + "import numba\n"
        + DEFECTS
        + write_module(tmp_path, KERNELS)
        + "print(prog.kernel.signatures)\nprint(*unmeasured.take())\n"
    )
    signatures, unmeasured = run_python(program, JITLISTEN_LOG=str(log)).splitlines()
    assert signatures == "[(Array(float64, 1, 'C', False, aligned=True),)]"
    assert "(ValueError: a defect): " in unmeasured and "prog.kernel" in unmeasured
    messages = log.read_text()
    for consequence in (
        "copies at joins have other lines",
        "a stencil has other lines",
        "an inlined call has no frame",
    ):
        assert consequence + ": ValueError: a defect" in messages, messages


UNTYPABLE = """
from numba.core import typeinfer
from jitlisten._coverage import unmeasured
from jitlisten._coverage.statements import MarkStatement
def fail(*arguments): raise ValueError("a defect")
typeinfer.typeinfer_extensions[MarkStatement] = fail
"""
UNTYPED = """
from numba import njit
@njit
def inner(x):
    return x + 1
@njit
def outer(x):
    return inner(x) * 2 - 1
@njit
def refused(x):
    return x.size
print(outer(3))
try:
    refused(3)
except Exception as error:
    print(type(error).__name__)
"""


def test_a_function_that_fails_with_marks_is_compiled_without(tmp_path):
    program = COVERAGE + "import numba\n" + UNTYPABLE + write_module(tmp_path, UNTYPED) + "print(*unmeasured.take())\n"
    result, refused, unmeasured = run_python(program).splitlines()
    assert result == "7" and refused == "TypingError"
    assert (
        unmeasured.endswith(": prog.inner, prog.outer") and "(ValueError: " in unmeasured and " a defect)" in unmeasured
    )


AFTER_ANOTHER_ERROR = """
from numba import njit
from numba.extending import overload
def called(x):
    pass
@overload(called)
def refuse(x):
    raise TypeError("refused")
@njit
def refused(x):
    return called(x)
@njit
def compiled(x):
    return x + 1
try:
    refused(3)
except Exception:
    print(compiled(3))
"""


def test_a_function_that_is_compiled_while_the_error_of_another_is_handled(tmp_path):
    program = COVERAGE + "import numba\n" + UNTYPABLE + write_module(tmp_path, AFTER_ANOTHER_ERROR)
    assert run_python(program) == "4\n"


UNTYPABLE_ONCE = """
from numba.core import typeinfer
from jitlisten._coverage import unmeasured
from jitlisten._coverage.statements import MarkStatement
failures = iter([ValueError("a defect")])
def fail_once(*arguments):
    for failure in failures:
        raise failure
typeinfer.typeinfer_extensions[MarkStatement] = fail_once
"""


def test_marks_are_tried_again_with_labels_in_another_order(tmp_path):
    program = (
        COVERAGE + UNTYPABLE_ONCE + write_module(tmp_path, UNTYPED) + "print(list(failures), len(unmeasured.take()))\n"
    )
    assert run_python(program).splitlines() == ["7", "TypingError", "[] 0"]


REFUSED_CALLEE = """
import numba
from numba.core import compiler
from numba.extending import intrinsic
compile_extra, compilations = compiler.compile_extra, []
def counted(*args, **kwargs):
    compilations.append(args)
    return compile_extra(*args, **kwargs)
compiler.compile_extra = counted
@intrinsic
def refuse(typingctx, x):
    def codegen(context, builder, signature, args):
        raise NotImplementedError("refused")
    return x(x), codegen
def wrap(function):
    return numba.njit(lambda x: function(x) + 1)
function = numba.njit(lambda x: refuse(x))
for depth in range(6):
    function = wrap(function)
try:
    function(1)
except Exception as error:
    print("refused" in str(error), len(compilations))
"""


def test_the_callers_of_a_refused_function_are_not_compiled_again(tmp_path):
    program = COVERAGE + write_module(tmp_path, REFUSED_CALLEE)
    refused, compilations = run_python(program).split()
    # Seven functions, and the number of compilations doubled with each of them if callers were compiled again. Numba
    # 0.57 itself compiles one of them twice.
    assert refused == "True" and 7 <= int(compilations) <= 14
