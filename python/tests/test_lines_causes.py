"""Code that Numba generates or moves must have the line that caused it."""

import os
import re
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "lines"))

from compiled import LIBRARY, compiled_rows, dwarfdump, inlined_calls, run_python, write_module

pytest.importorskip("numba")

INSTALL_LINES = "import jitlisten._lines as lines; lines.install()\n"

ARRAY_EXPRESSION_PROGRAM = '''"""Line 1."""
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
    rows = compiled_rows(write_module(tmp_path, ARRAY_EXPRESSION_PROGRAM), tmp_path)
    assert ("prog.py", 6) in rows and ("prog.py", 10) in rows
    assert not {row for row in rows if row[0] == "prog.py" and 0 < row[1] < 4}, sorted(rows)
    debug_info = dwarfdump("--debug-info", tmp_path.glob("*.o"))
    assert "__numba_array_expr" not in debug_info
    calls = inlined_calls(debug_info)
    (poly,) = [calls[name] for name in calls if name.startswith("prog.poly(")]
    expressions = {(name, line) for name, _, line in poly if name.startswith("array expression ")}
    ((name, line),) = expressions
    assert re.match(r"array expression prog\.py:6 in prog\.poly \[v\d+\]$", name) and line == 6, poly
    assert re.search(r"array expression prog\.py:10 in prog\.caller \[v\d+\]", debug_info)


STENCIL_PROGRAM = """import numpy as np
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
    rows = compiled_rows(write_module(tmp_path, STENCIL_PROGRAM), tmp_path)
    assert ("prog.py", 6) in rows
    # The entry block and the arguments have the line of `def`.
    assert not {row for row in rows if row[0] == "prog.py" and row[1] in (3, 4)}, sorted(rows)
    debug_info = dwarfdump("--debug-info", tmp_path.glob("*.o"))
    assert "stencil prog.py:6" in debug_info


PARALLEL_STENCIL_PROGRAM = STENCIL_PROGRAM.replace("@njit", "@njit(parallel=True)").replace("(\n    cval=0.0)", "")


def test_a_parallel_stencil_is_at_the_line_of_its_call(tmp_path):
    rows = compiled_rows(write_module(tmp_path, PARALLEL_STENCIL_PROGRAM), tmp_path)
    assert ("prog.py", 5) in rows and ("prog.py", 8) in rows
    assert not {row for row in rows if row[0] == "prog.py" and row[1] in (3, 6)}, sorted(rows)
    assert "prange kernel prog.py:8 in prog.f" in dwarfdump("--debug-info", tmp_path.glob("*.o"))


# Prefix of a program that prints each module that LLVM parses.
PRINT_MODULES = """
import llvmlite.binding
read = llvmlite.binding.parse_assembly
def parse_assembly(text, *more):
    print(text)
    return read(text, *more)
llvmlite.binding.parse_assembly = parse_assembly
"""


def instruction_lines(program, tmp_path, function, substring):
    """Lines of those instructions of a function that contain a string; None for instructions without a location."""
    output = run_python(INSTALL_LINES + PRINT_MODULES + write_module(tmp_path, program))
    module = next(
        module_text
        for module_text in output.split("; ModuleID")[1:]
        if re.search(r'\ndefine [^\n]*@"[^"]*%s' % function, module_text)
    )
    lines = {
        location: int(line) for location, line in re.findall(r"(!\d+) = (?:distinct )?!DILocation\(line: (\d+)", module)
    }
    body = re.search(r'\ndefine [^\n]*@"[^"]*%s.*?\n}' % function, module, re.S)[0]
    locations = [re.search(r"!dbg (!\d+)", line) for line in body.splitlines()[1:] if substring in line]
    return [location and lines[location[1]] for location in locations]


REFCOUNT_PROGRAM = """from numba import njit
@njit
def counted(n):
    values = [0.5]
    for i in range(n):
        values = [values[0] + i]
    return values[0]
counted(3)
"""


def test_reference_counting_has_the_line_that_causes_it(tmp_path):
    lines = instruction_lines(REFCOUNT_PROGRAM, tmp_path, "7counted", '@"NRT_decref"')
    assert lines and None not in lines and 0 not in lines, lines
    assert 6 in lines, lines


UFUNC_PROGRAM = """import numpy as np
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
    assert set(instruction_lines(UFUNC_PROGRAM, tmp_path, "__ufunc__.*4root", "load double")) == {6}
    assert set(instruction_lines(UFUNC_PROGRAM, tmp_path, "__gufunc__.*6double", "load i64")) == {9}


RECURSION_PROGRAM = """from numba import njit
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
    assert set(instruction_lines(RECURSION_PROGRAM, tmp_path, "3fib", " ret ")) == {3}
    # Errors of `fib` are returned, too.
    lines = instruction_lines(RECURSION_PROGRAM, tmp_path, "3one", " ret ")
    assert len(lines) > 1 and set(lines) == {12}, lines


PRINT_COPY_LINES = """
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

BRANCH_PROGRAM = """from numba import njit
@njit
def f(a, p, q):
    y = a * 2
    if p:
        if q:
            y = a * 3
    return y
"""


def test_a_copy_where_branches_join_has_no_line_of_a_branch_not_taken(tmp_path):
    # The value of line 4 is copied after it, and where only `p` is true. Numba's own location, used in messages, is
    # unchanged.
    assert (
        run_python(INSTALL_LINES + write_module(tmp_path, BRANCH_PROGRAM) + PRINT_COPY_LINES) == "[4, 7, 8] [4, 4, 7]\n"
    )


PRANGE_PROGRAM = """import numpy as np
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


def perf_map_environment(tmp_path):
    return {"LD_PRELOAD": os.path.abspath(LIBRARY), "JITLISTEN": "perfmap", "JITLISTEN_DIR": str(tmp_path)}


def read_perf_map_names(program, tmp_path):
    output = run_python(INSTALL_LINES + write_module(tmp_path, program + PRINT_MAP), **perf_map_environment(tmp_path))
    return [line.split(" ", 2)[2] for line in output.splitlines() if "prog." in line]


def test_no_name_of_a_perf_map_has_an_address_where_the_line_is_known(tmp_path):
    kernels = [name for name in read_perf_map_names(PRANGE_PROGRAM, tmp_path) if "prange kernel" in name]
    assert any(name.startswith("kernel::gufunc::prange kernel prog.py:6 ") for name in kernels), kernels
    assert not [name for name in kernels if "[0x" in name], kernels


CALLABLE_ARGUMENT_PROGRAM = """from numba import float64, njit
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
    names = read_perf_map_names(CALLABLE_ARGUMENT_PROGRAM, tmp_path)
    assert not [name for name in names if re.search("[0-9a-f]{8}", name)], names
    names = [name for name in names if name.startswith("prog.g")]
    assert len(names) == 2 and "<function f>" in names[0] + names[1], names
    compiled_rows(write_module(tmp_path, CALLABLE_ARGUMENT_PROGRAM), tmp_path, **perf_map_environment(tmp_path))
    linkage_names = re.findall(
        r'DW_AT_linkage_name\s+\("(prog\.g[^"]+)"', dwarfdump("--debug-info", tmp_path.glob("*.o"))
    )
    assert {name.partition(" [v")[0] for name in linkage_names} == {name.partition(" [v")[0] for name in names}
