"""The file that describes each compilation: `python/jitlisten/_compilations.py`."""

import json
import os
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "lines"), os.path.join(HERE, os.pardir)]

from compiled import run_python, write_module

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


def begin_recording(tmp_path, recording=None):
    """Source code that simulates a recording started by the library; ``recording`` is a Python expression."""
    return "from jitlisten import _compilations; _compilations._recording = lambda: %s; _compilations.begin()\n" % (
        recording or repr(str(tmp_path / "f.data"))
    )


def read_rows(tmp_path, name="f.data"):
    path = tmp_path / (name + ".images") / "compilations.jsonl"
    header, *rows = map(json.loads, path.read_text().splitlines())
    assert set(header) == {"pid", "start"}
    # The line of a compilation's end replaces that of its begin.
    return list({row["id"]: row for row in rows}.values())


def test_each_compilation_is_a_row(tmp_path):
    program = write_module(tmp_path, KERNEL % "")
    assert run_python(begin_recording(tmp_path) + program + "print(prog.work())") == run_python(
        program + "print(prog.work())"
    )
    rows = read_rows(tmp_path)
    outer = [row for row in rows if row["function"] == "prog.outer"]
    assert [row["signature"] for row in outer] == ["(float64[:, ::1], int64)", "(float64[:], int64)"]
    inner = [row for row in rows if row["function"] == "prog.inner"]
    assert [row["depth"] for row in outer] == [0, 0] and [row["depth"] for row in inner] == [1, 1]
    assert {row["why"] for row in outer + inner} == {"off"} and outer[0]["line"] == 8
    assert outer[0]["caller"] == "%s:16" % (tmp_path / "prog.py") and "caller" not in inner[0]
    for row in rows:
        assert 0 < row["llvm"] < row["cpu"] and row["size"] < 100_000
    for outer_row, inner_row in zip(outer, inner):
        assert (
            outer_row["begin"] < inner_row["begin"] < inner_row["end"] < outer_row["end"]
            and outer_row["thread"] == inner_row["thread"]
        )
        assert outer_row["llvm"] > inner_row["llvm"] and outer_row["size"] > inner_row["size"] >= 0


def test_a_function_that_numba_refuses_is_a_row_and_the_error_the_same(tmp_path):
    program = (
        "import numba\n@numba.njit\ndef wrong(x): return x.nothing\ntry: wrong(3)\nexcept Exception as e:"
        " print(type(e), e)\n"
    )
    output = run_python(begin_recording(tmp_path) + program)
    assert "TypingError" in output and output == run_python("\n" + program)
    (row,) = read_rows(tmp_path)
    assert row["failed"] and row["function"] == "__main__.wrong"


def test_why_a_function_was_not_in_the_cache(tmp_path):
    program = write_module(tmp_path, KERNEL % "(cache=True)")
    enable_lines = "import jitlisten._lines as lines; lines.install()\n"

    def list_reasons(prefix):
        run_python(
            prefix + begin_recording(tmp_path) + program + "prog.work()", NUMBA_CACHE_DIR=str(tmp_path / "cache")
        )
        return [(row["why"], row["depth"]) for row in read_rows(tmp_path) if row["function"] == "prog.outer"]

    assert list_reasons("") == [("new", 0)] * 2
    assert list_reasons("") == [("cache", 0)] * 2
    assert list_reasons(enable_lines) == [("lines", 0)] * 2, "compiled again: the entry has no lines"
    assert list_reasons(enable_lines) == [("cache", 0)] * 2
    code = (
        (KERNEL % "(cache=True)")
        .replace("total = 0.0", "total = large[1]")
        .replace("@numba.njit(", "large = np.ones(200_000)\n@numba.njit(")
    )
    program = write_module(tmp_path, code)
    assert list_reasons("import warnings; warnings.simplefilter('ignore')\n") == [("dynamic", 0)] * 2


def test_llvm_in_numbas_first_use_is_no_part_of_a_compilation(tmp_path):
    function = "@numba.njit\ndef f%d(n):\n    s = 0\n    for i in range(n): s ^= i * i\n    return s\nf%d(3)\n"
    program = "import numba\n" + "".join(function % (number, number) for number in range(3))
    # CPU time of the same work differs from run to run.
    for _ in range(3):
        run_python(begin_recording(tmp_path) + program)
        first, *others = read_rows(tmp_path)
        assert first["first_use"] > 5 * others[0]["first_use"], (first, others)
        numba, *_ = front_ends = [row["cpu"] - row["llvm"] - row["first_use"] for row in (first, *others)]
        if 0.5 * others[0]["llvm"] < first["llvm"] < 1.5 * others[0]["llvm"] and numba > 0.5 * min(front_ends[1:]):
            return
    raise AssertionError((first, others))


UFUNCS = """
import numba

@numba.vectorize(["float64(float64)"]%s)
def element(a):
    return a + 1

@numba.guvectorize(["void(float64[:], float64[:])"], "(n)->(n)"%s)
def row(a, b):
    b[0] = a[0]
"""


def test_loops_of_ufuncs_have_the_reason_of_their_own_cache(tmp_path):
    def list_reasons(program):
        run_python(begin_recording(tmp_path) + program, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
        rows = [row for row in read_rows(tmp_path) if row["depth"] == 0]
        assert [row["line"] for row in rows] == [4, 4, 8, 8] and len({row["file"] for row in rows}) == 1, rows
        return [(row["why"], row.get("loop", False)) for row in rows]

    # Numba never caches the loop of `vectorize`.
    program = write_module(tmp_path, UFUNCS % ("", ""))
    assert list_reasons(program) == [("off", False), ("wrapper", False), ("off", False), ("off", True)]
    cached = write_module(tmp_path, UFUNCS % (", cache=True", ", cache=True"))
    assert list_reasons(cached) == [("new", False), ("wrapper", False), ("new", False), ("new", True)]
    assert list_reasons(cached) == [("cache", False), ("wrapper", False), ("cache", False), ("wrapper", False)]


def test_code_without_a_file_can_be_cached_only_in_ipython(tmp_path):
    program = (
        "import linecache, sys, types, numba\n"
        "def run(file):\n"
        "    exec(compile('@numba.njit\\ndef f(n): return n\\nf(1)', file, 'exec'), {'numba': numba})\n"
        "files = '<string>', '<ipython-input-1-ab>', '/tmp/ipykernel_7/8.py'\n"
        "for file in files: run(file)\n"
        "run('/nowhere/made.py')\n"
        "sys.modules['IPython'] = types.ModuleType('IPython')\n"
        "run(files[1])\n"
        "for file in files: linecache.cache[file] = 9, None, ['@numba.njit\\n'], file\n"
        "for file in files: run(file)\n"
    )
    run_python(begin_recording(tmp_path) + program)
    why = [row["why"] for row in read_rows(tmp_path)]
    assert why == ["generated"] * 6 + ["off"] * 2, why


def test_a_process_that_is_not_recorded_is_left_alone():
    print_state = (
        "import sys, numba; from numba.core import caching, compiler, event\n"
        "print('jitlisten._lines' in sys.modules, hasattr(compiler.CompilerBase._compile_core, '__wrapped__'),"
        " hasattr(caching.Cache.load_overload, '__wrapped__'), sum(map(len, event._registered.values())))"
    )
    site = os.path.join(os.path.dirname(_compilations.__file__), "_site")
    variables = {"PYTHONPATH": site, "JITLISTEN_RUN": "children+lines:libjitlisten.so"}
    assert run_python(print_state, **variables) == "True False False 0\n"
    assert (
        run_python(print_state, **variables, JITLISTEN_RECORD="f.data", JITLISTEN_RECORD_BEGUN="1")
        == "True False False 0\n"
    )


def test_children_of_a_fork_have_files_of_their_own(tmp_path):
    program = write_module(tmp_path, KERNEL % "") + (
        "import os\nchild = os.fork()\nprog.work()\nif child: os.waitpid(child, 0); print(child)\n"
    )
    own_recording = "%r + '.%%d' %% __import__('os').getpid()" % str(tmp_path / "f.data")
    child = int(run_python(begin_recording(tmp_path, own_recording) + program))
    folders = [name for name in os.listdir(tmp_path) if name.startswith("f.data")]
    (parent_folder,) = [name for name in folders if name != "f.data.%d.images" % child]
    functions = [[row["function"] for row in read_rows(tmp_path, name[: -len(".images")])] for name in folders]
    assert functions[0] == functions[1] and "prog.outer" in functions[0] and parent_folder.endswith(".images")


def test_rows_wait_until_the_recording_has_its_place(tmp_path):
    program = write_module(tmp_path, KERNEL % "") + (
        "prog.inner(prog.np.ones(3))\n"
        "import os; print(list(filter(os.path.exists, ['.images', %r])))\n"
        "_compilations._recording = lambda: %r\n"
        "prog.inner(prog.np.ones((3, 3)))\n" % (str(tmp_path / "f.data.images"), str(tmp_path / "f.data"))
    )
    assert run_python(begin_recording(tmp_path, "''") + program) == "[]\n"
    assert [row["function"] for row in read_rows(tmp_path) if row["depth"] == 0] == ["prog.inner"] * 2
    # Without a recording, nothing is written.
    assert run_python(begin_recording(tmp_path, "None") + write_module(tmp_path, KERNEL % "") + "prog.work()\n") == ""


def test_a_folder_that_others_may_write_to_is_not_used(tmp_path):
    folder = tmp_path / "f.data.images"
    folder.mkdir()
    folder.chmod(0o777)
    program = write_module(tmp_path, KERNEL % "")
    assert run_python(begin_recording(tmp_path) + program + "print(prog.work())") == run_python(
        program + "print(prog.work())"
    )
    assert os.listdir(folder) == []


def test_a_new_recording_of_the_same_name_begins_anew(tmp_path):
    program = write_module(tmp_path, KERNEL % "") + "prog.inner(np.ones(3))\n".replace("np", "prog.np")
    for _ in range(2):
        run_python(begin_recording(tmp_path) + program)
        assert [row["function"] for row in read_rows(tmp_path) if row["depth"] == 0] == ["prog.inner"]


def test_what_is_no_object_has_no_code():
    assert _compilations.code_size(b"") == 0
    assert _compilations.code_size(b"BC\xc0\xde" + bytes(100)) == 0
