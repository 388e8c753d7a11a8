"""`jitlisten compiles` lists the functions that Numba compiled in a recorded program."""

import json
import os
import re
import subprocess
import textwrap

import pytest
from conftest import PROGRAMS, command, python, wait_for
from test_answers import run_on_terminal

KERNEL = PROGRAMS / "kernel.py"


def test_what_a_program_compiled(run, tmp_path):
    program_once = ["--", python(), KERNEL, "once"]
    run(command(), "compiles", "-s", "--json", "out", *program_once)
    (burn,) = [row for row in json.loads((tmp_path / "out").read_text()) if row["depth"] == 0]
    assert burn["function"] == "kernel.burn" and burn["signature"] == "(int64)" and not burn["cached"]
    assert 0 < burn["llvm"] < burn["took"] <= 2 * burn["lasted"] and burn["size"] > 0
    assert burn["file"] == str(KERNEL) and burn["caller"].startswith(f"{KERNEL}:")
    text = run(command(), "compiles").stdout
    assert "kernel.burn" in text and "1 compilation, " in text and "cache=True not set" in text
    assert [row["function"] for row in json.loads(run(command(), "lines", "--json", "-").stdout)["compilations"]][
        0
    ] == "kernel.burn"
    # The same recording name is used again, for a program that compiles nothing.
    run(command(), "record", "--", python(), "-c", "sum(range(10_000_000))")
    assert "no compilations" in run(command(), "compiles").stdout


def test_a_row_is_a_line_of_the_terminal(environment, run, tmp_path):
    recording, page = tmp_path / "mixed.data", tmp_path / "page.html"
    run(command(), "record", "-o", recording, "--", python(), PROGRAMS / "mixed.py")
    compiled = json.loads(run(command(), "compiles", "--json", "-", recording).stdout)
    assert len(compiled) > 4 and all("0x" not in row["function"] for row in compiled)
    environment.pop("COLUMNS", None)
    for columns in (80, 120):
        text = run_on_terminal(environment, columns, command(), "compiles", "--all", recording)
        rows = text.split("\n\n")[0].splitlines()
        assert max(map(len, text.splitlines())) <= columns, text
        assert len(rows) == 1 + len(compiled), text
        assert ("signature" in rows[0]) == (columns >= 110)
    run(command(), "lines", "--html", page, recording)
    data = json.loads(page.read_text().split('type="application/json">')[1].split("</script>")[0])
    assert [row["function"] for row in data["compiling"]["rows"]] == [row["function"] for row in compiled]


def test_a_bundle_says_what_was_compiled(run, tmp_path):
    for _ in range(2):
        run(command(), "record", "--bundle", "-o", "folder", "--", python(), KERNEL, "once")
    (tmp_path / "folder").rename(tmp_path / "moved")
    assert "kernel.burn" in run(command(), "compiles", "moved").stdout


#: Compiles two functions, and prints how long Numba's own events took in this thread.
EVENTS = """
import json, time
from numba import njit, vectorize
from numba.core import event

took, begun = [], []

class Listener(event.Listener):
    def on_start(self, _):
        begun.append(time.thread_time())

    def on_end(self, _):
        took.append(time.thread_time() - begun.pop())

event.register("numba:compile", Listener())

@njit
def first(n):
    return n + 1

@njit
def second(n):
    return n * 2

first(1)
second(1)
print(json.dumps(took))
"""


def test_times_agree_with_numbas_events(run, tmp_path):
    (tmp_path / "prog.py").write_text(EVENTS)
    events = json.loads(run(command(), "record", "--", python(), "prog.py").stdout)
    first, second = json.loads(run(command(), "compiles", "--json", "-").stdout)
    for row, event in zip((first, second), events):
        assert abs(row["took"] / 1e9 - event) < 0.005, (row, events)
    # Building the registries takes longer than compiling such a function.
    assert first["first_use"] > first["took"] / 2 and second["first_use"] < second["took"] / 4, (first, second)
    summary = json.loads(run(command(), "lines", "--json", "-").stdout)["summary"]
    assert summary["first_use"]["weight"] > 0.8 * first["first_use"], summary


CACHED = """
from numba import njit

@njit(cache=True)
def cached(n):
    return n + 1

cached(1)
"""


def test_a_cached_load_is_no_compilation(run, tmp_path):
    (tmp_path / "prog.py").write_text(CACHED)
    rows = []
    for _ in range(2):
        run(command(), "record", "-r", "999", "--", python(), "prog.py")
        rows += json.loads(run(command(), "compiles", "--json", "-").stdout)
    compiled, loaded = rows
    assert compiled["why"] == "no cache entry for this source yet" and compiled["saved"] > 0
    assert loaded["cached"] and loaded["took"] < compiled["took"] / 3, rows
    summary = json.loads(run(command(), "lines", "--json", "-").stdout)["summary"]
    assert summary["compiling"]["samples"] == 0 < summary["first_use"]["samples"], summary


def test_cache_entries_have_types_and_belong_to_a_processor(run, tmp_path):
    program = CACHED.replace("@njit(cache=True)", '@njit("int64(int64)", cache=True)')
    (tmp_path / "prog.py").write_text(program)
    rows = []
    for variables in ({}, {}, {"NUMBA_CPU_NAME": "generic"}):
        run(command(), "record", "-r", "999", "--", python(), "prog.py", **variables)
        rows += json.loads(run(command(), "compiles", "--json", "-").stdout)
    assert {row["signature"] for row in rows} == {"(int64)"}, rows
    words = ["no cache entry for this source yet", "from the cache", "cached for another processor only"]
    assert [row["why"] for row in rows] == words


PICKLED = """
import pickle, sys
from numba import njit

@njit(cache=True)
def cached(n):
    return n + 1

@njit
def plain(n):
    return n + 1

if sys.argv[1:]:
    cached(1), plain(1)
    with open("pickled", "wb") as file:
        pickle.dump((cached, plain), file)
else:
    with open("pickled", "rb") as file:
        for function in pickle.load(file):
            function(1)
"""


def test_pickling_loses_the_cache(run, tmp_path):
    (tmp_path / "prog.py").write_text(PICKLED)
    run(python(), "prog.py", "write")
    run(command(), "record", "--", python(), "prog.py")
    why = {row["function"]: row["why"] for row in json.loads(run(command(), "compiles", "--json", "-").stdout)}
    assert why == {
        "prog.cached": "cache lost when the function is pickled",
        "prog.plain": "cache=True not set",
    }


def test_ufunc_loops_are_compiled_too(run, tmp_path):
    program = """
        from numba import guvectorize, vectorize
        @vectorize(["float64(float64)"])
        def element(a):
            return a + 1
        @guvectorize(["void(float64[:], float64[:])"], "(n)->(n)")
        def row(a, b):
            b[0] = a[0]
    """
    (tmp_path / "prog.py").write_text(textwrap.dedent(program))
    run(command(), "record", "--", python(), "prog.py")
    rows = json.loads(run(command(), "compiles", "--json", "-").stdout)
    loops = [(row["function"], row["why"]) for row in rows if row["why"].startswith("its loop as a ufunc")]
    # Numba can cache only the second.
    expected = [("prog.element", "its loop as a ufunc"), ("prog.row", "its loop as a ufunc; cache=True not set")]
    assert loops == expected, rows
    assert "2 compilations, " in run(command(), "compiles").stdout
    took = sum(row["took"] - row["first_use"] for row in rows if row["depth"] == 0)
    lines = run(command(), "lines", "--all").stdout
    (next_run,) = re.findall(r"next run: 2 compilations again \((\d+) ms\); cache=True not set", lines)
    assert abs(int(next_run) - took / 1e6) <= 1, (next_run, rows)


#: Compiles a function that keeps Numba busy for minutes.
LONG = """
from numba import njit
body = "".join(f"    if x > {i}.5:\\n        a{i % 7} = a{(i + 1) % 7} * x + {i}.0\\n" for i in range(3000))
scope = {}
exec("def big(x):\\n" + "".join(f"    a{i} = 1.0\\n" for i in range(7)) + body + "    return a0\\n", scope)
njit(scope["big"])(3.0)
"""


def test_an_unfinished_compilation_is_named(environment, run, tmp_path):
    (tmp_path / "prog.py").write_text(LONG)
    program = subprocess.Popen(
        [str(command()), "record", "-o", "long.data", "--", str(python()), "prog.py"], env=environment, cwd=tmp_path
    )
    try:
        log = tmp_path / "long.data.images" / "compilations.jsonl"
        wait_for(lambda: log.exists() and len(log.read_text().splitlines()) > 1, "a compilation to begin")
        # The first samples that the file gets may be older than the compilation.
        for _ in range(2):
            size = (tmp_path / "long.data").stat().st_size
            wait_for(lambda: (tmp_path / "long.data").stat().st_size > size, "samples of it")
    finally:
        pid = json.loads(log.read_text().splitlines()[0])["pid"]
        os.kill(pid, 9)
        program.wait()
    (row,) = json.loads(run(command(), "compiles", "--json", "-", "long.data").stdout)
    assert row["function"].endswith("big") and not row["finished"] and 0 < row["took"] <= row["lasted"], row
    assert "not finished; for prog.py:6; " in run(command(), "compiles", "long.data").stdout


#: Compiles functions while tests replace clocks and the file system.
FROZEN = """
from freezegun import freeze_time
from numba import njit
from pyfakefs.fake_filesystem_unittest import Patcher

@njit
def frozen(x):
    return x + 1

with freeze_time("2020-01-01"):
    frozen(1)
with Patcher():
    frozen(1.0)
"""


def test_replaced_clocks_and_files_lose_nothing(run, tmp_path):
    if run(python(), "-c", "import freezegun, pyfakefs", status=None).returncode:
        if os.environ.get("CI"):
            pytest.fail("CI must have freezegun and pyfakefs: ci/setup.sh wheel")
        pytest.skip("no freezegun and pyfakefs: ci/setup.sh wheel")
    (tmp_path / "prog.py").write_text(FROZEN)
    run(command(), "record", "--", python(), "prog.py")
    rows = json.loads(run(command(), "compiles", "--json", "-").stdout)
    assert [row["signature"] for row in rows if row["depth"] == 0] == ["(int64)", "(float64)"], rows
    assert all(0 < row["took"] <= 2 * row["lasted"] for row in rows), rows
