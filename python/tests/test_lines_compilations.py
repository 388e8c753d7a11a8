"""What is written of each compilation: `python/jitlisten/_compilations.py`."""

import json
import os
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "lines"), os.path.join(HERE, os.pardir)]

from compiled import run, source
from jitlisten import _compilations

pytest.importorskip("numba")

KERNEL = """
import numba, numpy as np

@numba.njit
def inner(a):
    return a.sum() + 1

@numba.njit%s
def outer(a, n):
    total = 0.0
    for i in range(n):
        total += inner(a)
    return total

def work():
    return outer(np.ones((2, 3)), 2), outer(np.ones(3)[::2], 2)
"""


def begin(tmp_path, recording=None):
    """A recording that the library has begun; ``recording`` is an expression."""
    return "from jitlisten import _compilations; _compilations._recording = lambda: %s; _compilations.begin()\n" % (
        recording or repr(str(tmp_path / "f.data"))
    )


def written(tmp_path, name="f.data"):
    path = tmp_path / (name + ".images") / "compilations.jsonl"
    head, *rows = map(json.loads, path.read_text().splitlines())
    assert set(head) == {"pid", "start"}
    return rows


def test_each_compilation_is_a_row(tmp_path):
    program = source(tmp_path, KERNEL % "")
    assert run(begin(tmp_path) + program + "print(prog.work())") == run(program + "print(prog.work())")
    rows = written(tmp_path)
    outer = [row for row in rows if row["function"] == "prog.outer"]
    assert [row["signature"] for row in outer] == ["(float64[:, ::1], int64)", "(float64[:], int64)"]
    inner = [row for row in rows if row["function"] == "prog.inner"]
    assert [row["depth"] for row in outer] == [0, 0] and [row["depth"] for row in inner] == [1, 1]
    assert {row["why"] for row in outer + inner} == {"off"} and outer[0]["line"] == 8
    assert outer[0]["caller"] == "%s:16" % (tmp_path / "prog.py") and "caller" not in inner[0]
    for row in rows:
        assert 0 < row["llvm"] < row["cpu"] and row["size"] < 100_000
    for one, other in zip(outer, inner):
        assert one["begin"] < other["begin"] < other["end"] < one["end"] and one["thread"] == other["thread"]
        assert one["llvm"] > other["llvm"] and one["size"] > other["size"] >= 0


def test_a_function_that_numba_refuses_is_a_row_and_the_error_the_same(tmp_path):
    program = (
        "import numba\n@numba.njit\ndef wrong(x): return x.nothing\ntry: wrong(3)\nexcept Exception as e:"
        " print(type(e), e)\n"
    )
    said = run(begin(tmp_path) + program)
    assert "TypingError" in said and said == run("\n" + program)
    (row,) = written(tmp_path)
    assert row["failed"] and row["function"] == "__main__.wrong"


def test_why_a_function_was_not_in_the_cache(tmp_path):
    program = source(tmp_path, KERNEL % "(cache=True)")
    lines = "import jitlisten._lines as lines; lines.install()\n"

    def why(before):
        run(before + begin(tmp_path) + program + "prog.work()", NUMBA_CACHE_DIR=str(tmp_path / "cache"))
        return [(row["why"], row["depth"]) for row in written(tmp_path) if row["function"] == "prog.outer"]

    assert why("") == [("new", 0)] * 2
    assert why("") == [("cache", 0)] * 2
    assert why(lines) == [("lines", 0)] * 2, "compiled again: the entry has no lines"
    assert why(lines) == [("cache", 0)] * 2
    text = (
        (KERNEL % "(cache=True)")
        .replace("total = 0.0", "total = large[1]")
        .replace("@numba.njit(", "large = np.ones(200_000)\n@numba.njit(")
    )
    program = source(tmp_path, text)
    assert why("import warnings; warnings.simplefilter('ignore')\n") == [("dynamic", 0)] * 2


def test_a_process_that_is_not_recorded_is_left_alone():
    look = (
        "import sys, numba; from numba.core import caching, compiler, event\n"
        "print('jitlisten._lines' in sys.modules, hasattr(compiler.CompilerBase._compile_core, '__wrapped__'),"
        " hasattr(caching.Cache.load_overload, '__wrapped__'), sum(map(len, event._registered.values())))"
    )
    site = os.path.join(os.path.dirname(_compilations.__file__), "_site")
    below = {"PYTHONPATH": site, "JITLISTEN_RUN": "children+lines:libjitlisten.so"}
    assert run(look, **below) == "True False False 0\n"
    assert run(look, **below, JITLISTEN_RECORD="f.data", JITLISTEN_RECORD_BEGUN="1") == "True False False 0\n"


def test_children_of_a_fork_have_files_of_their_own(tmp_path):
    program = source(tmp_path, KERNEL % "") + (
        "import os\n"
        "child = os.fork()\n"
        "prog.work()\n"
        "if child: os.waitpid(child, 0); print(child)\n"
    )
    own = "%r + '.%%d' %% __import__('os').getpid()" % str(tmp_path / "f.data")
    child = int(run(begin(tmp_path, own) + program))
    folders = [name for name in os.listdir(tmp_path) if name.startswith("f.data")]
    (other,) = [name for name in folders if name != "f.data.%d.images" % child]
    functions = [[row["function"] for row in written(tmp_path, name[: -len(".images")])] for name in folders]
    assert functions[0] == functions[1] and "prog.outer" in functions[0] and other.endswith(".images")


def test_rows_wait_until_the_recording_has_its_place(tmp_path):
    program = source(tmp_path, KERNEL % "") + (
        "prog.inner(prog.np.ones(3))\n"
        "import os; print(os.listdir('.'))\n"
        "_compilations._recording = lambda: %r\n"
        "prog.inner(prog.np.ones((3, 3)))\n" % str(tmp_path / "f.data")
    )
    assert "f.data.images" not in run(begin(tmp_path, "''") + program)
    assert [row["function"] for row in written(tmp_path) if row["depth"] == 0] == ["prog.inner"] * 2
    # Without a recording nothing is written.
    assert run(begin(tmp_path, "None") + source(tmp_path, KERNEL % "") + "prog.work()\n") == ""


def test_a_folder_that_others_may_write_to_is_not_used(tmp_path):
    folder = tmp_path / "f.data.images"
    folder.mkdir()
    folder.chmod(0o777)
    program = source(tmp_path, KERNEL % "")
    assert run(begin(tmp_path) + program + "print(prog.work())") == run(program + "print(prog.work())")
    assert os.listdir(folder) == []


def test_a_new_recording_of_the_same_name_begins_anew(tmp_path):
    program = source(tmp_path, KERNEL % "") + "prog.inner(np.ones(3))\n".replace("np", "prog.np")
    for _ in range(2):
        run(begin(tmp_path) + program)
        assert [row["function"] for row in written(tmp_path) if row["depth"] == 0] == ["prog.inner"]


def test_what_is_no_object_has_no_code():
    assert _compilations.code_size(b"") == 0
    assert _compilations.code_size(b"BC\xc0\xde" + bytes(100)) == 0
