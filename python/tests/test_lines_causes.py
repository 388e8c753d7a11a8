"""Code that Numba generates or moves has the line that caused it."""

import os
import re
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "lines"))

from compiled import LIBRARY, dwarfdump, inlined_calls, rows, run, source

pytest.importorskip("numba")

HEAD = "import jitlisten._lines as lines; lines.install()\n"

EXPRESSION = '''"""Line 1."""
import numpy as np
from numba import njit
@njit
def poly(x, y):
    z = (x - 1.5) * (x + 2.0) / (x * x + 1.0) + np.sqrt(np.abs(y))
    return z[0]
@njit(inline="always")
def callee(x):
    return x * x - 1.0
@njit
def caller(x):
    y = callee(x)
    return y[0]
poly(np.ones(9), np.ones(9)), caller(np.ones(9))
'''


def test_an_array_expression_is_at_its_line_and_named_by_it(tmp_path):
    found = rows(source(tmp_path, EXPRESSION), tmp_path)
    assert ("prog.py", 6) in found and ("prog.py", 10) in found
    assert not {row for row in found if row[0] == "prog.py" and 0 < row[1] < 4}, sorted(found)
    dump = dwarfdump("--debug-info", tmp_path.glob("*.o"))
    assert "__numba_array_expr" not in dump
    calls = inlined_calls(dump)
    (poly,) = [calls[name] for name in calls if name.startswith("prog.poly(")]
    expressions = {(name, line) for name, _, line in poly if name.startswith("array expression ")}
    (name, line), = expressions
    assert re.match(r"array expression prog\.py:6 in prog\.poly \[v\d+\]$", name) and line == 6, poly
    assert re.search(r"array expression prog\.py:10 in prog\.caller \[v\d+\]", dump)


STENCIL = """import numpy as np
from numba import njit, stencil
@stencil(
    cval=0.0)
def kernel(a):
    return 0.25 * (a[0, 1] + a[1, 0] + a[0, -1] + a[-1, 0])
@njit
def f(a):
    return kernel(a)
f(np.ones((9, 9)))
"""


def test_a_stencil_is_at_the_line_of_its_expression(tmp_path):
    found = rows(source(tmp_path, STENCIL), tmp_path)
    assert ("prog.py", 6) in found
    # Entry and arguments have the line of `def`.
    assert not {row for row in found if row[0] == "prog.py" and row[1] in (3, 4)}, sorted(found)
    names = dwarfdump("--debug-info", tmp_path.glob("*.o"))
    assert "stencil prog.py:6" in names


PARALLEL_STENCIL = STENCIL.replace("@njit", "@njit(parallel=True)").replace("(\n    cval=0.0)", "")


def test_a_parallel_stencil_is_at_the_line_of_its_call(tmp_path):
    found = rows(source(tmp_path, PARALLEL_STENCIL), tmp_path)
    assert ("prog.py", 5) in found and ("prog.py", 8) in found
    assert not {row for row in found if row[0] == "prog.py" and row[1] in (3, 6)}, sorted(found)
    assert "prange kernel prog.py:8 in prog.f" in dwarfdump("--debug-info", tmp_path.glob("*.o"))


# Prints each module as LLVM reads it.
MODULES = """
import llvmlite.binding
read = llvmlite.binding.parse_assembly
def parse_assembly(text, *more):
    print(text)
    return read(text, *more)
llvmlite.binding.parse_assembly = parse_assembly
"""


def located(program, tmp_path, function, instruction):
    """The lines of a function's instructions that contain a text; None for those without a location."""
    text = run(HEAD + MODULES + source(tmp_path, program))
    module = next(
        part for part in text.split("; ModuleID")[1:] if re.search(r'\ndefine [^\n]*@"[^"]*%s' % function, part)
    )
    lines = {
        number: int(line) for number, line in re.findall(r"(!\d+) = (?:distinct )?!DILocation\(line: (\d+)", module)
    }
    body = re.search(r'\ndefine [^\n]*@"[^"]*%s.*?\n}' % function, module, re.S)[0]
    found = [re.search(r"!dbg (!\d+)", line) for line in body.splitlines()[1:] if instruction in line]
    return [number and lines[number[1]] for number in found]


COUNTED = """from numba import njit
@njit
def counted(n):
    values = [0.5]
    for i in range(n):
        values = [values[0] + i]
    return values[0]
counted(3)
"""


def test_reference_counting_has_the_line_that_causes_it(tmp_path):
    found = located(COUNTED, tmp_path, "7counted", '@"NRT_decref"')
    assert found and None not in found and 0 not in found, found
    assert 6 in found, found


ELEMENTS = """import numpy as np
from numba import guvectorize, vectorize
@vectorize(["f8(f8)"])
def root(a):
    \"\"\"Its text.\"\"\"
    return np.sqrt(a)
@guvectorize(["(f8[:], f8[:])"], "(n)->(n)")
def double(a, out):
    out[:] = a * 2.0
"""


def test_the_loop_of_a_ufunc_is_at_its_first_statement(tmp_path):
    assert set(located(ELEMENTS, tmp_path, "__ufunc__.*4root", "load double")) == {6}
    assert set(located(ELEMENTS, tmp_path, "__gufunc__.*6double", "load i64")) == {9}


FIB = """from numba import njit
@njit
def fib(n):
    if n < 2:
        return n
    return fib(n - 1) + fib(n - 2)
@njit
def one(n):
    s = 0
    for i in range(n):
        s += fib(i)
    return s
fib(5), one(3)
"""


def test_the_returns_of_a_function_have_one_line(tmp_path):
    assert set(located(FIB, tmp_path, "3fib", " ret ")) == {3}
    # An error of `fib` is returned, too.
    found = located(FIB, tmp_path, "3one", " ret ")
    assert len(found) > 1 and set(found) == {12}, found


JOIN = """
import prog, numba.core.typed_passes as passes
from jitlisten._numba.locations import shown
original = passes.PreLowerStripPhis._strip_phi_nodes
def strip(self, func_ir):
    known = {id(inst) for block in func_ir.blocks.values() for inst in block.body}
    done = original(self, func_ir)
    copies = [inst.loc for block in done.blocks.values() for inst in block.body if id(inst) not in known]
    print(sorted(shown(loc).line for loc in copies), sorted(loc.line for loc in copies))
    return done
passes.PreLowerStripPhis._strip_phi_nodes = strip
prog.f(2.0, True, False)
"""

JOINED = """from numba import njit
@njit
def f(a, p, q):
    y = a * 2
    if p:
        if q:
            y = a * 3
    return y
"""


def test_a_copy_where_branches_join_has_no_line_of_a_branch_not_taken(tmp_path):
    # The value of line 4 is copied after it, and where only `p` holds. Numba's own location, in messages, stays.
    assert run(HEAD + source(tmp_path, JOINED) + JOIN) == "[4, 7, 8] [4, 4, 7]\n"


PARALLEL = """import numpy as np
from numba import njit, prange
@njit(parallel=True)
def f(x):
    out = np.empty(x.size)
    for i in prange(x.size):
        out[i] = x[i] * 2.0
    return out
f(np.ones(9))
"""


PRINT_MAP = """
import os
with open("/tmp/perf-%d.map" % os.getpid()) as file:
    print(file.read())
"""


def with_perf_map(tmp_path):
    return {"LD_PRELOAD": os.path.abspath(LIBRARY), "JITLISTEN": "perfmap", "JITLISTEN_DIR": str(tmp_path)}


def names_in_perf_map(program, tmp_path):
    found = run(HEAD + source(tmp_path, program + PRINT_MAP), **with_perf_map(tmp_path))
    return [line.split(" ", 2)[2] for line in found.splitlines() if "prog." in line]


def test_no_name_of_a_perf_map_has_an_address_where_the_line_is_known(tmp_path):
    kernels = [name for name in names_in_perf_map(PARALLEL, tmp_path) if "prange kernel" in name]
    assert any(name.startswith("kernel::gufunc::prange kernel prog.py:6 ") for name in kernels), kernels
    assert not [name for name in kernels if "[0x" in name], kernels


PASSED = """from numba import float64, njit
from numba.experimental import jitclass
@njit
def f(x):
    return x * 2.0
@njit(inline="never")
def g(h, n):
    return h(n)
@jitclass([("x", float64)])
class Point:
    def __init__(self):
        self.x = 0.5
@njit(inline="never")
def get(point):
    return point.x
@njit
def numbers(n):
    for i in range(n):
        yield i
@njit
def all(n):
    s = g(f, n) + get(Point())
    for i in numbers(n):
        s += i
    return s
all(1)
"""


def test_no_name_has_the_address_of_an_argument(tmp_path):
    names = names_in_perf_map(PASSED, tmp_path)
    assert not [name for name in names if re.search("[0-9a-f]{8}", name)], names
    names = [name for name in names if name.startswith("prog.g")]
    assert len(names) == 2 and "<function f>" in names[0] + names[1], names
    rows(source(tmp_path, PASSED), tmp_path, **with_perf_map(tmp_path))
    described = re.findall(r'DW_AT_linkage_name\s+\("(prog\.g[^"]+)"', dwarfdump("--debug-info", tmp_path.glob("*.o")))
    assert {name.partition(" [v")[0] for name in described} == {name.partition(" [v")[0] for name in names}
