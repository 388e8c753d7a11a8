"""Line tables: which code has them, and their contents. `test_lines_same_code.py` compares the code itself."""

import hashlib
import os
import re
import subprocess
import sys
import zipfile

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "lines"))

from compiled import (
    CAPTURE,
    LIBRARY,
    PACKAGE,
    compiled_rows,
    dwarfdump,
    inlined_calls,
    line_table_rows,
    run_python,
    write_module,
)

pytest.importorskip("numba")

IMPORT_LINES = "import jitlisten._lines as lines\n"
PRINT_STATUS = "print(lines.status()['active'], lines.status()['reason'])\n"


def test_importing_the_package_does_nothing():
    program = (
        "import sys; before = list(sys.meta_path); import jitlisten, jitlisten._lines; print(before == sys.meta_path)"
    )
    assert run_python(program) == "True\n"


def test_numba_may_come_before_or_after():
    assert (
        run_python(IMPORT_LINES + "lines.install(); lines.install(); " + PRINT_STATUS)
        == "False numba has not been imported\n"
    )
    assert run_python(IMPORT_LINES + "lines.install(); import numba; " + PRINT_STATUS) == "True None\n"
    assert run_python(IMPORT_LINES + "import numba; lines.install(); " + PRINT_STATUS) == "True None\n"


#: Importing these modules imports every function that lines replace.
ALL_HOOKED_MODULES = (
    "numba, numba.parfors.parfor_lowering, numba.core.pylowering, numba.core.inline_closurecall, numba.core.pythonapi,"
    " numba.core.debuginfo, numba.core.typed_passes"
)
#: Finder that acts while the import of `colorsys` goes through the list of finders.
ACTING_FINDER = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == 'colorsys': act()
sys.meta_path.insert(-1, Finder())
"""


@pytest.mark.parametrize("action", ["lines.remove()", f"import {ALL_HOOKED_MODULES}"])
def test_an_import_in_progress_goes_on(action):
    program = IMPORT_LINES + "lines.install()\ndef act(): " + action + ACTING_FINDER + "import colorsys; print('fine')"
    assert run_python(program) == "fine\n"


SHARED_LOADER = """
import sys
from importlib.machinery import PathFinder, SourceFileLoader
class Loader:
    def create_module(self, spec): return None
    def exec_module(self, module): SourceFileLoader(module.__name__, module.__spec__.origin).exec_module(module)
loader = Loader()
class Finder:
    def find_spec(self, name, path=None, target=None):
        spec = PathFinder.find_spec(name, path)
        if name in ('colorsys', 'numba'): spec.loader = loader
        return spec
sys.meta_path.insert(-1, Finder())
import importlib.util
importlib.util.find_spec('numba')
import colorsys, numba.core.lowering
"""


def test_a_loader_may_be_shared_by_all_modules():
    assert run_python(IMPORT_LINES + "lines.install()" + SHARED_LOADER + PRINT_STATUS) == "True None\n"


def test_all_loaders_are_as_before():
    program = (
        IMPORT_LINES + f"lines.install(); import {ALL_HOOKED_MODULES}\n"
        "print(numba.core.lowering.__spec__.loader.__dict__.get('exec_module'))"
    )
    assert run_python(program) == "None\n"


# Searches what llvmlite, finders and callbacks of fork keep alive, but not through modules of other packages.
SEARCH_REFERENCES = """
import gc, sys, types
from jitlisten import _compilations
callbacks = []
_compilations.os.register_at_fork = lambda **functions: callbacks.extend(functions.values())
_compilations.Clocks = lambda: None
lines.install(); _compilations.begin()
import numba.core.compiler
from llvmlite.ir import _utils, values
def is_followed(item):
    if isinstance(item, types.FunctionType): item = item.__globals__
    name = item.get('__name__') if isinstance(item, dict) else getattr(item, '__name__', None) \\
        if isinstance(item, types.ModuleType) else item.__module__ if isinstance(item, type) else None
    return name is None or name.startswith('jitlisten')
seen, reached = set(), []
remaining = [*sys.meta_path, *callbacks, values.Block.descr, _utils._HasMetadata._stringify_metadata]
while remaining:
    item = remaining.pop()
    if id(item) not in seen:
        seen.add(id(item))
        if isinstance(item, types.ModuleType) and item.__name__.startswith('numba'): reached.append(item)
        if is_followed(item): remaining += gc.get_referents(item)
print(len(callbacks), reached)
"""


def test_numba_is_not_kept_alive_by_others():
    assert run_python(IMPORT_LINES + SEARCH_REFERENCES) == "1 []\n"


def test_it_can_be_switched_off():
    assert (
        run_python(IMPORT_LINES + "lines.install(); import numba; " + PRINT_STATUS, JITLISTEN_LINES="0")
        == "False JITLISTEN_LINES=0\n"
    )


# Lists all attributes of Numba's and llvmlite's modules and classes.
LIST_CONTENTS = """
import importlib, sys, types
for name in ("core.lowering", "core.pylowering", "core.pythonapi", "core.codegen", "core.debuginfo",
             "core.inline_closurecall", "core.typed_passes", "parfors.parfor_lowering"):
    importlib.import_module("numba." + name)
def contents():
    found = {}
    for name, module in sorted(sys.modules.items()):
        if module is not None and name.partition(".")[0] in ("numba", "llvmlite"):
            for word, value in list(vars(module).items()):
                found[name, word] = value
                if isinstance(value, type) and value.__module__ == name:
                    found.update(((name, word + "." + part), held) for part, held in list(vars(value).items()))
    return found
def changed(before, after):
    # What the parts of ours import anew is no replacement.
    kept = [key for key in set(before) | set(after) if before.get(key) is not after.get(key)]
    return sorted(word for _, word in kept if not isinstance(after.get((_, word)), types.ModuleType))
"""

REPLACED_NAMES = (
    "BaseLower.__init__ Block.descr CPUCodeLibrary.add_ir_module CPUCodegen.magic_tuple Cache.save_overload"
    " CodeLibrary.__init__ InlineWorker.inline_ir Loc.__copy__"
    " Loc.__deepcopy__ Loc.__getstate__ PreLowerStripPhis._strip_phi_nodes PyLower.lower_inst"
    " PythonAPI.serialize_object StencilPass._mk_stencil_parfor _HasMetadata._stringify_metadata"
    " _create_gufunc_for_parfor_body inline_closure_call suspend_emission"
).split()


def test_what_is_replaced_is_replaced_once_and_stays():
    program = (
        IMPORT_LINES
        + LIST_CONTENTS
        + (
            "stock = contents(); lines.install(); ours = contents()\n"
            "lines.remove(); lines.install(); again = contents()\n"
            "lines.remove()\nprint(' '.join(changed(stock, ours)))\nprint(changed(ours, again))\n"
        )
    )
    replaced, after_reinstall, status = run_python(program + PRINT_STATUS).splitlines()
    assert replaced.split() == REPLACED_NAMES
    assert after_reinstall == "[]" and status == "False not installed"


SWITCH_PROGRAM = """
import numba
from numba import njit
from numba.core import lowering
import jitlisten._lines as lines
def switched(before, after):
    \"\"\"A function that is compiled while lines are switched, and whether it has lines.\"\"\"
    before()
    original = lowering.Lower.lower_inst
    def lower_inst(self, inst):
        after()
        original(self, inst)
    lowering.Lower.lower_inst = lower_inst
    f = njit(lambda x: [x, x + 1][x - 2])
    found = f(2)
    lowering.Lower.lower_inst = original
    lines.remove()
    return found, 'LineTablesOnly' in next(iter(f.inspect_llvm().values()))
off, on = lines.remove, lines.install
print(switched(on, off), switched(off, on), switched(off, off))
"""


def test_a_function_has_lines_as_it_was_when_its_code_was_begun():
    assert run_python(SWITCH_PROGRAM) == "(2, True) (2, False) (2, False)\n"


def test_numba_may_be_half_imported():
    program = IMPORT_LINES + (
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'numba.core.pythonapi': lines.install(); print('numba.core.lowering' in sys.modules)\n"
        "sys.meta_path.insert(0, Finder()); import numba.core.lowering\n" + PRINT_STATUS + "numba.njit(lambda x: x)(2)"
    )
    assert run_python(program).splitlines()[-1] == "True None"


def test_every_version_that_gets_lines_is_one_that_is_compared():
    program = "from jitlisten._numba.versions import COMPARED\nfor v in sorted(COMPARED): print('%d.%d.%d' % v)"
    with open(os.path.join(PACKAGE, os.pardir, "ci", "lines.sh")) as file:
        compared_versions = set(re.findall(r"^(\d+\.\d+\.\d+)\S* \d\.\d+ numba==\1\b", file.read(), re.M))
    assert compared_versions == set(run_python(program).split())


# The last three versions are unknown patch releases of known minor versions.
@pytest.mark.parametrize("version", ["0.55.2", "0.99.0", "0.68.0rc1", "0+unknown", "0.56.1", "0.57.2", "0.68.2"])
def test_an_unknown_version_gets_no_lines_and_a_word_in_the_log(version, tmp_path):
    log = tmp_path / "log"
    program = IMPORT_LINES + (
        "import numba; numba.__version__ = %r; lines.install()\n" % version
        + "print(numba.njit(lambda x: x + 1)(2)); print(lines.status()['active'])"
    )
    assert run_python(program, JITLISTEN_LOG=str(log)) == "3\nFalse\n"
    (line,) = log.read_text().splitlines()
    assert "no lines: unsupported Numba " + version in line


def test_code_that_would_be_padded_otherwise_has_lines_only_by_force(tmp_path):
    log = tmp_path / "log"
    program = (
        IMPORT_LINES + "import numba; numba.__version__ = '0.56.4'; lines.install(); print(lines.status()['active'])\n"
    )
    assert run_python(program, JITLISTEN_LOG=str(log), JITLISTEN_LINES="1") == "False\n"
    assert "no lines: numba 0.56.4 pads code that has lines otherwise" in log.read_text()
    assert run_python(program, JITLISTEN_LINES="force") == "True\n"


def test_something_else_in_the_place_of_a_class_is_no_trouble(tmp_path):
    log = tmp_path / "log"
    program = IMPORT_LINES + (
        "import numba, numba.core.typed_passes as t; found = t.PreLowerStripPhis\n"
        "t.PreLowerStripPhis = None; lines.install(); t.PreLowerStripPhis = found\n"
        "print(lines.status()['active'], numba.njit(lambda x: x + 1)(2))"
    )
    assert run_python(program, JITLISTEN_LOG=str(log)) == "False 3\n"
    assert len(log.read_text().splitlines()) == 1


def test_a_defect_of_ours_costs_the_lines_only(tmp_path):
    log = tmp_path / "log"
    program = IMPORT_LINES + (
        "lines.install(); from numba import njit; from jitlisten._lines import metadata\n"
        "def bad(self, scope, line, call=None):\n"
        "    return self.add('!DILocation(line: -5, scope: %s)' % scope.get_reference())\n"
        "metadata.ModuleLines.location = bad\n"
        "f = njit(lambda x: x + 1); print(njit(lambda x: f(x) * 2)(2))\n"
        "def bad(self, scope, line, call=None): raise KeyError(line)\n"
        "metadata.ModuleLines.location = bad\n"
        "print(njit(lambda x: f(x) * 2)(2.5))\n"
    )
    assert run_python(program, JITLISTEN_LOG=str(log)) == "6\n7.0\n"
    assert "no lines for" in log.read_text()


# Intrinsic that uses a value before its definition.
BAD_INTRINSIC = """
from numba import njit, types
from numba.extending import intrinsic
@intrinsic
def bad(context, x):
    def codegen(context, builder, signature, args):
        value = builder.add(args[0], args[0])
        first = builder.function.entry_basic_block
        with builder.goto_block(first):
            builder.position_at_start(first)
            builder.add(value, value)
        return value
    return types.int64(types.int64), codegen
try:
    njit(lambda x: bad(x))(3)
except Exception as error:
    print(type(error).__name__, 'does not dominate' in str(error))
print(njit(lambda x: x + 1)(2))
"""


def test_code_that_llvm_refuses_is_an_exception_as_without_lines():
    install_code = IMPORT_LINES + "import numba; lines.install(); lines.remove(); lines.install()\n"
    stock = run_python(BAD_INTRINSIC)
    assert stock.endswith(" True\n3\n") and run_python(install_code + BAD_INTRINSIC) == stock


@pytest.mark.parametrize("name", ['a"b.py', "a\\b\n.py", "/tmp/\xfc/\udcff.py", "", '<x"y>', "!dbg.py"])
def test_any_name_of_a_file_is_no_trouble(name):
    program = IMPORT_LINES + (
        "lines.install(); from numba import njit\n"
        "exec(compile('def f(x):\\n    return x + 1\\n', %a, 'exec'))\nprint(njit(f)(2))" % name
    )
    assert run_python(program) == "3\n"


def test_a_users_own_debug_information_stays():
    program = IMPORT_LINES + (
        "lines.install(); import numba\n"
        "@numba.njit(debug=True)\ndef f(x): return x\nf(1)\n"
        "@numba.njit\ndef g(x): return x\ng(1)\n"
        "f, g = [next(iter(h.inspect_llvm().values())) for h in (f, g)]\n"
        "print('DILocalVariable' in f, 'LineTablesOnly' in f, 'LineTablesOnly' in g)"
    )
    assert run_python(program) == "True False True\n"


CACHE_PROGRAM = """
import sys, jitlisten._lines as lines
lines.install()
sys.path.insert(0, {directory!r})
import cached
cached.f(3)
print(sum(cached.f.stats.cache_hits.values()))
"""


def test_cached_code_with_lines_and_without_are_kept_apart(tmp_path):
    (tmp_path / "cached.py").write_text("from numba import njit\n@njit(cache=True)\ndef f(x):\n    return x ** 0.5\n")
    program = CACHE_PROGRAM.format(directory=str(tmp_path))
    assert os.path.exists(LIBRARY), "make build makes it"

    def count_hits(with_lines, run_number):
        """Number of cache hits, and true if the loaded code has the line."""
        images = tmp_path / str(run_number)
        images.mkdir()
        sinks = {"LD_PRELOAD": os.path.abspath(LIBRARY), "JITLISTEN": "image", "JITLISTEN_DIR": str(images)}
        lines_setting = {"JITLISTEN_LINES": "force" if with_lines else "0"}
        output = run_python(program, NUMBA_CACHE_DIR=str(tmp_path / "cache"), **sinks, **lines_setting)
        return output.strip(), ("cached.py", 4) in line_table_rows(images, "image-*/object-*.so")

    # Runs with line tables do not use code that was cached without them, nor vice versa. Each mode finds its own code.
    hits = [count_hits(lines, number) for number, lines in enumerate((False, True, True, False))]
    assert hits == [("0", False), ("0", True), ("1", True), ("1", False)]


def test_code_cached_by_an_older_builder_is_compiled_again(tmp_path):
    (tmp_path / "cached.py").write_text("from numba import njit\n@njit(cache=True)\ndef f(x):\n    return x ** 0.5\n")
    program = CACHE_PROGRAM.format(directory=str(tmp_path))
    cache = str(tmp_path / "cache")
    # The marker of an older builder, which had no frames for inlined calls.
    older_builder = "import jitlisten._lines.patches as patches\npatches.KEY.marker = 'jitlisten-lines-1'\n" + program
    assert [
        run_python(code, NUMBA_CACHE_DIR=cache).strip() for code in (older_builder, older_builder, program, program)
    ] == ["0", "1", "0", "1"]


# Source of a module, and a line number that its compiled code must have. For the last module, two objects must have it.
CODE_KINDS = {
    "loop": (
        (
            "from numba import njit\n@njit\ndef f(n):\n    s = 0.0\n    for i in range(n):\n        s += i ** 0.5\n   "
            " return s\nf(9)\n"
        ),
        6,
    ),
    "prange": (
        (
            "import numpy as np\nfrom numba import njit, prange\n@njit(parallel=True)\ndef f(a):\n    s = 0.0\n"
            "    for i in prange(a.size):\n        s += np.sqrt(a[i])\n    return s\nf(np.ones(9))\n"
        ),
        7,
    ),
    "vectorize": (
        "from numba import vectorize\n@vectorize(['f8(f8)'])\ndef f(x):\n    y = x * 3\n    return y ** 0.5\n",
        5,
    ),
    "guvectorize": (
        (
            "from numba import guvectorize\n@guvectorize(['f8[:], f8[:]'], '(n)->(n)')\ndef f(a, b):\n"
            "    for i in range(a.size):\n        b[i] = a[i] * 3\n"
        ),
        5,
    ),
    "cfunc": ("from numba import cfunc\n@cfunc('f8(f8)')\ndef f(x):\n    return x ** 0.5 + 1\n", 4),
    "stencil": (
        (
            "import numpy as np\nfrom numba import stencil, njit\n@stencil\ndef k(a):\n    return a[-1] + a[1]\n"
            "@njit\ndef f(a):\n    return k(a)\nf(np.ones(9))\n"
        ),
        5,
    ),
    "array expression": (
        "import numpy as np\nfrom numba import njit\n@njit\ndef f(a):\n    return a * 2 + np.sqrt(a)\nf(np.ones(9))\n",
        5,
    ),
    "generator": (
        "from numba import njit\n@njit\ndef f(n):\n    for i in range(n):\n        yield i * n\nlist(f(3))\n",
        5,
    ),
    "jitclass": (
        (
            "from numba import float64\nfrom numba.experimental import jitclass\n@jitclass([('x', float64)])\nclass"
            " C:\n    def __init__(self, x):\n        self.x = x * 2\n    def add(self, y):\n        self.x += y **"
            " 0.5\nC(1.0).add(2.0)\n"
        ),
        8,
    ),
    "object mode": (
        "from numba import jit\n@jit(forceobj=True)\ndef f(x):\n    y = str(x)\n    return y + 'a'\nf(3)\n",
        5,
    ),
    "lambda": ("from numba import njit\nf = njit(\n    lambda x: x ** 0.5\n)\nf(3.0)\n", 3),
    "recursion": (
        "from numba import njit\n@njit\ndef f(n):\n    return n if n < 2 else f(n - 1) + f(n - 2)\nf(5)\n",
        4,
    ),
    "overload": (
        (
            "from numba import njit\nfrom numba.extending import overload\ndef g(x): pass\n@overload(g)\ndef o(x):\n   "
            " def impl(x):\n        return x ** 0.5 + 2\n    return impl\n@njit\ndef f(x):\n    return g(x)\nf(2.0)\n"
        ),
        7,
    ),
    "unroll": (
        (
            "from numba import njit, literal_unroll\n@njit\ndef f(t):\n    s = 0.0\n    for x in literal_unroll(t):\n"
            "        s += x ** 0.5\n    return s\nf((1, 2.5))\n"
        ),
        6,
    ),
    "lifted loop": (
        (
            "from numba import jit\n@jit(forceobj=True, looplift=True)\ndef f(n):\n    name, s = str(n), 0.0\n    for i"
            " in range(n):\n        s += i ** 0.5\n    return name, s\nf(9)\n"
        ),
        6,
    ),
    "typed list": (
        (
            "from numba import njit\nfrom numba.typed import List\n@njit\ndef f(n):\n    a = List()\n    for i in"
            " range(n):\n        a.append(i * 2.5)\n    return a[n - 1] ** 0.5\nf(9)\n"
        ),
        7,
    ),
    "text for exec": (
        (
            "from numba import njit\nnames = {'njit': njit}\ntext = '@njit\\ndef f(x):\\n    y = x * 3\\n    return y"
            " ** 0.5\\n'\nexec(compile(text, __file__, 'exec'), names)\nnames['f'](2.0)\n"
        ),
        4,
    ),
    "several signatures": (
        "from numba import njit\n@njit\ndef f(x):\n    y = x * 3\n    return y ** 0.5\nf(1), f(2.5)\n",
        5,
    ),
}


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    """Directory with the objects of each kind of code, all compiled in one process."""
    directory = tmp_path_factory.mktemp("kinds")
    program = "sys.path.insert(0, %r)\n" % str(directory)
    for number, (source_text, _) in enumerate(CODE_KINDS[kind] for kind in sorted(CODE_KINDS)):
        (directory / ("prog%d.py" % number)).write_text(source_text)
        program += "import prog%d\n" % number
        program += "for i, data in enumerate(objects.CAPTURED): open('%s/%d-%%d.o' %% i, 'wb').write(data)\n" % (
            directory,
            number,
        )
        program += "del objects.CAPTURED[:]\n"
    run_python(CAPTURE + program)
    return directory


@pytest.mark.parametrize("kind", sorted(CODE_KINDS))
def test_every_kind_of_code_has_the_line(kind, kinds):
    number = sorted(CODE_KINDS).index(kind)
    rows = line_table_rows(kinds, "%d-*.o" % number)
    row = ("prog%d.py" % number, CODE_KINDS[kind][1])
    assert row in rows, sorted(rows)
    if kind == "several signatures":
        assert len([path for path in kinds.glob("%d-*.o" % number) if row in line_table_rows(kinds, path.name)]) == 2
    # Lines of code that Numba generated from a string (`<string>`) are mapped to the user's line.
    assert not [row for row in rows if row[0] == "<string>"], sorted(rows)


def test_text_without_a_file_has_its_own_lines(tmp_path):
    code = (
        "names = {}\nexec('def g(x):\\n    y = x * 3\\n    return y ** 0.5\\n', names)\nimport"
        " numba\nnumba.njit(names['g'])(2.0)\n"
    )
    rows = compiled_rows(write_module(tmp_path, code), tmp_path)
    assert ("<string>", 3) in rows and not [row for row in rows if row[0] == "prog.py"], sorted(rows)


def test_a_users_directory_may_be_called_numba(tmp_path):
    directory = tmp_path / "numba" / "app"
    directory.mkdir(parents=True)
    code = "from numba import njit\n@njit\ndef f(x):\n    return x ** 0.5\nf(2.0)\n"
    program = write_module(directory, code, "users.py")
    compiled_rows(program, tmp_path)
    debug_info = dwarfdump("--debug-info", tmp_path.glob("*.o"))
    # The debug information has the hash of the source, so that a report can detect that the file has changed, and the
    # line of `def`, not of the decorator.
    assert "sha256:" + hashlib.sha256(code.encode()).hexdigest()[:32] in debug_info, debug_info
    function_info = debug_info[debug_info.index('"users.f(') :]
    assert re.search(r"decl_line\s+\((\d+)\)", function_info)[1] == "3", function_info[:500]


def test_what_numba_inlines_has_the_file_it_comes_from(tmp_path):
    write_module(
        tmp_path,
        "\n" * 40 + "from numba import njit\n@njit(inline='always')\ndef g(x):\n    return x ** 0.5\n",
        "callee.py",
    )
    code = "from numba import njit\nimport callee\n@njit\ndef f(x):\n    return callee.g(x) + 1\nf(2.0)\n"
    rows = compiled_rows(write_module(tmp_path, code), tmp_path)
    assert ("callee.py", 44) in rows and ("prog.py", 5) in rows, sorted(rows)
    assert not {row for row in rows if row[0] == "prog.py" and row[1] > 6}, sorted(rows)


CALLEE = """from numba import njit
@njit(inline='always')
def deeper(x):
    return x ** 0.5 * 3.0
@njit(
    inline='always')
def g(x):
    y = deeper(x)
    return y / (x + 1.0)
"""

CALLER = """import numpy as np
from numba import njit, prange
from numba.extending import overload
import callee
def triple(x): pass
@overload(triple, inline='always')
def overloaded(x):
    def impl(x):
        return x * 3.5
    return impl
@njit
def f(x):
    return callee.g(x)
@njit
def overloads(x):
    return triple(x)
@njit
def closes(x):
    def closed(y):
        return y * x
    return closed(x + 1.5)
@njit(parallel=True)
def loops(a):
    s = 0.0
    for i in prange(a.size):
        s += callee.g(a[i])
    return s
@njit(parallel=True)
def sums(a):
    return a.sum()
@njit(parallel=True)
def fills(a):
    n = a.size
    for i in prange(n):
        a[i] = i
f(2.0), overloads(2.0), closes(2.0), loops(np.ones(9)), sums(np.ones(9)), fills(np.ones(9))
"""


def test_what_numba_inlines_has_a_frame_of_its_own(tmp_path):
    write_module(tmp_path, CALLEE, "callee.py")
    rows = compiled_rows(write_module(tmp_path, CALLER), tmp_path)
    # Line 9 is the last statement of `g`; line 4 is in `deeper`, which `g` calls.
    assert {("callee.py", 4), ("callee.py", 9)} <= rows, sorted(rows)
    calls = inlined_calls(dwarfdump("--debug-info", tmp_path.glob("*.o")))
    expected_calls = [("callee.g", "prog.py", 13), ("callee.deeper", "callee.py", 8)]

    def calls_in(start):
        (name,) = [name for name in calls if name.startswith(start)]
        return calls[name]

    assert calls_in("prog.f(") == expected_calls, calls
    assert calls_in("prog.overloads(") == [("prog.overloaded.<locals>.impl", "prog.py", 16)], calls
    assert calls_in("prog.closes(") == [("prog.closes.<locals>.closed", "prog.py", 21)], calls
    # LLVM unrolls the loop, so the calls repeat.
    assert set(calls_in("prange kernel prog.py:25 ")) == {("callee.g", "prog.py", 26), expected_calls[1]}, calls
    # The call that starts the threads has the line of the loop, not that of the preceding statement.
    assert {line for _, file, line in calls_in("prog.fills(") if file == "prog.py"} == {34}, calls
    # Numba turns this NumPy function into a loop, whose kernel is named after the line of the user's call.
    kernel = calls_in("gufunc::prange kernel prog.py:30 in prog.sums ")
    assert any(
        re.match(r"numba\.parfors\..*sum", name) and call_site == ["prog.py", 30] for name, *call_site in kernel
    ), calls


def test_a_prange_kernel_is_named_by_its_line(kinds):
    number = sorted(CODE_KINDS).index("prange")
    debug_info = dwarfdump("--debug-info", kinds.glob("%d-*.o" % number))
    assert '"gufunc::prange kernel prog%d.py:6"' % number in debug_info
    assert '"prange kernel prog%d.py:6"' % number in debug_info
    # Most tools show the linkage name, which includes the function.
    assert re.search(
        r'linkage_name.*"gufunc::prange kernel prog%d.py:6 in prog%d.f \[v\d+\]"' % (number, number), debug_info
    ), debug_info


def test_without_lines_a_prange_kernel_is_named_by_its_function(tmp_path):
    code = (
        "import numpy as np\nfrom numba import njit, prange\n@njit(parallel=True)\ndef diffuse(a):\n    s = 0.0\n"
        "    for i in prange(a.size):\n        s += np.sqrt(a[i])\n    return s\n"
        "diffuse(np.ones(9))\nimport os\nprint(open('/tmp/perf-%d.map' % os.getpid()).read())"
    )
    (tmp_path / "prog.py").write_text(code)
    environment = dict(os.environ, LD_PRELOAD=os.path.abspath(LIBRARY), JITLISTEN="perfmap", JITLISTEN_LINES="0")
    result = subprocess.run(
        [sys.executable, "prog.py"], cwd=str(tmp_path), env=environment, stdout=subprocess.PIPE, timeout=600
    )
    kernels = {line.split(" ", 2)[2] for line in result.stdout.decode().splitlines() if "prange kernel" in line}
    assert any(re.match(r"gufunc::prange kernel in __main__\.diffuse \[v\d+\]$", name) for name in kernels), kernels


def test_a_jitclass_constructor_belongs_to_the_class(kinds):
    number = sorted(CODE_KINDS).index("jitclass")
    debug_info = dwarfdump("--debug-info", kinds.glob("%d-*.o" % number))
    assert re.search(r'linkage_name.*"prog%d.C.ctor\(float64\) \[v\d+\]"' % number, debug_info), debug_info
    assert '"C.add.method"' in debug_info
    # Line 5 is `def __init__`.
    constructor_info = debug_info[debug_info.index('"C.ctor"') :]
    assert re.search(r"decl_line\s+\((\d+)\)", constructor_info)[1] == "5", constructor_info[:500]


def test_lambdas_and_closures_have_their_qualified_names(tmp_path):
    code = (
        "from numba import njit\ndef make(k):\n    @njit\n    def g(x):\n        return x + k\n    return g,"
        " njit(lambda x: x * k)\n"
    )
    program = write_module(tmp_path, code) + "[f(3) for f in prog.make(2)]\n"
    compiled_rows(program, tmp_path)
    debug_info = dwarfdump("--debug-info", tmp_path.glob("*.o"))
    for name in ("make.<locals>.g", "make.<locals>.<lambda>"):
        assert '"%s"' % name in debug_info and '"prog.%s(int64) [v' % name in debug_info, debug_info


def test_what_is_inlined_has_the_name_of_the_symbol(tmp_path):
    code = (
        "from numba import njit\n@njit\ndef g(x):\n    return x ** 0.5\n@njit\ndef f(x):\n    return g(x) + 1\nf(2.0)\n"
    )
    compiled_rows(write_module(tmp_path, code), tmp_path)
    debug_info = dwarfdump("--debug-info", tmp_path.glob("*.o"))
    inlined_info = debug_info[debug_info.index("DW_TAG_inlined_subroutine") :]
    assert re.search(r'abstract_origin.*"prog.g\(float64\) \[v\d+\]"', inlined_info), debug_info


def test_the_text_of_a_notebook_cell_is_kept(tmp_path):
    cell = "from numba import njit\n@njit\ndef f(x):\n    return x ** 0.5\n"
    program = (
        "import linecache\ntext = %r\nname = '<ipython-input-3-0123abcd>'\n"
        "linecache.cache[name] = (len(text), None, text.splitlines(True), name)\n"
        "exec(compile(text, name, 'exec'))\nf(2.0)\n" % cell
    )
    rows = compiled_rows(program, tmp_path, JITLISTEN_DIR=str(tmp_path))
    (saved,) = (tmp_path / "sources").glob("*.py")
    assert (tmp_path / "sources/jitlisten-sources").is_file(), "the marker"
    assert saved.name.startswith("ipython-input-3-0123abcd-") and saved.read_text() == cell
    assert saved.stat().st_mode & 0o777 == 0o600
    assert (saved.name, 4) in rows, sorted(rows)


def test_the_text_of_a_module_in_a_zip_file_is_kept(tmp_path):
    code = "from numba import njit\n@njit(\n    nogil=True)\ndef f(x):\n    return x ** 0.5\n"
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.writestr("kernels.py", code)
    program = "sys.path.insert(0, %r)\nimport kernels\nkernels.f(2.0)\n" % str(tmp_path / "app.zip")
    rows = compiled_rows(program, tmp_path, JITLISTEN_DIR=str(tmp_path))
    (saved,) = (tmp_path / "sources").glob("*.py")
    assert saved.read_text() == code
    assert {line for name, line in rows if name == saved.name} - {0} == {4, 5}, sorted(rows)


def test_where_the_text_cannot_be_kept_there_are_lines_all_the_same(tmp_path):
    (tmp_path / "sources").write_text("a file in the way")
    program = (
        "import linecache\ntext = 'def f(x):\\n    return x ** 0.5\\n'\nname = '<ipython-input-3-0123abcd>'\n"
        "linecache.cache[name] = (len(text), None, text.splitlines(True), name)\n"
        "exec(compile(text, name, 'exec'))\nimport numba\nnumba.njit(f)(2.0)\n"
    )
    log = tmp_path / "log"
    rows = compiled_rows(program, tmp_path, JITLISTEN_DIR=str(tmp_path), JITLISTEN_LOG=str(log))
    assert ("<ipython-input-3-0123abcd>", 2) in rows, sorted(rows)
    assert "cannot save the sources of notebook cells" in log.read_text()
