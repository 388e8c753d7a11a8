"""The first screen of ``jitlisten lines`` must name the line that costs most and what helps, on 40 lines of 80
columns."""

import json
import subprocess

import pytest
from conftest import TEST_TIMEOUT_S, command, python

#: Most of the time is in a library that one line of the user calls through another.
CALLS = """
import numpy as np
from numba import njit

@njit
def norm(a):
    s = 0.0
    for i in range(a.size):
        s += a[i] * a[i]
    return s

def step(a):
    return np.sort(a), norm(a)  # inner

a = np.random.rand(300_000)
for k in range(100):
    b, n = step(a)  # outer
"""

#: A parallel loop that is too small for its threads.
SMALL_LOOPS = """
import numpy as np
from numba import njit, prange

@njit(parallel=True)
def scale(a, f):
    out = np.zeros(a.size)
    for i in prange(a.size):
        out[i] = a[i] * f
    return out

a = np.random.rand(255)
for k in range(20_000):
    a = scale(a, 1.0001)  # call
"""

#: Time is spread over many lines of one function.
FLAT = "def flat(x):\n" + "".join(f"    x = x * 1.5 % {k + 3}\n" for k in range(60)) + "    return x\n"
FLAT += "\nfor k in range(400_000):\n    flat(k)  # call\n"

#: Recursion, and a program that fails.
RECURSION = """
import sys

def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)  # recursive

fib(31)  # call
sys.exit(3)
"""


def line_of(text, mark):
    return next(number for number, line in enumerate(text.splitlines(), 1) if line.endswith("  # " + mark))


class Screen:
    def __init__(self, environment, directory, name, text, *options, status=0):
        (directory / name).write_text(text)
        environment = {**environment, "COLUMNS": "80", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "2"}
        environment["NUMBA_THREADING_LAYER"] = "omp"
        args = [command(), "lines", "--color", "never", *options, "--", python(), name]
        result = subprocess.run(
            [str(word) for word in args],
            env=environment,
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=TEST_TIMEOUT_S,
        )
        assert result.returncode == status, result.stderr
        self.text = result.stdout
        lines = result.stdout.splitlines()
        (end,) = [index for index, line in enumerate(lines) if line.startswith("jitlisten.perf.data: jitlisten lines")]
        self.rows = lines[: end + 1]
        assert end < 40 and max(map(len, self.rows)) <= 80, self.text
        output = subprocess.run(
            [str(command()), "lines", "--json", "-", str(directory / "jitlisten.perf.data")],
            capture_output=True,
            check=True,
            timeout=TEST_TIMEOUT_S,
        ).stdout
        self.answer = json.loads(output)["answer"]

    def section(self, heading):
        start = next(index for index, row in enumerate(self.rows) if heading in row) + 1
        end = next(index for index, row in enumerate(self.rows[start:], start) if not row)
        return self.rows[start:end]


@pytest.fixture
def screen(environment, tmp_path):
    return lambda *args, **options: Screen(environment, tmp_path, *args, **options)


def test_the_line_that_calls_a_library_is_first(screen):
    shown = screen("prog.py", CALLS)
    first = shown.section("your lines")[0]
    outer, inner = line_of(CALLS, "outer"), line_of(CALLS, "inner")
    assert f"prog.py:{outer}›{inner} " in first and "numpy" in first.split("  ")[-1], shown.text
    row = shown.answer["rows"][0]
    assert (row["line"], row["callers"][0]["line"], row["kind"]) == (inner, outer, "python")
    assert row["total"] == max(other["total"] for other in shown.answer["rows"]) and "numpy" in row["parts"]
    assert sum(share["samples"] for share in shown.answer["shares"].values()) == shown.answer["samples"]
    assert " of CPU time in " in shown.rows[0]


def test_small_parallel_loops_are_named(screen):
    shown = screen("prog.py", SMALL_LOOPS)
    call = line_of(SMALL_LOOPS, "call")
    (row,) = [row for row in shown.section("your lines") if f"prog.py:{call} " in row]
    assert "libgomp" in row, shown.text
    (help,) = [help for help in shown.answer["helps"] if help["rule"] == "parallel-too-small"]
    assert f"called at prog.py:{call}" in help["text"] and help["percent"] > 10, help
    assert " · 2 threads · " in shown.rows[0], shown.rows[0]


def test_flat_functions_and_recursion_are_one_row(screen):
    shown = screen("flat.py", FLAT)
    (row,) = [row for row in shown.answer["rows"] if row["kind"] == "function"]
    assert row["function"] == "flat" and row["total_percent"] > 50, shown.text
    assert any("flat()" in line and " lines" in line for line in shown.section("your lines")), shown.text

    shown = screen("fib.py", RECURSION, status=3)
    call, recursive = line_of(RECURSION, "call"), line_of(RECURSION, "recursive")
    rows = shown.answer["rows"]
    assert max(row["total_percent"] for row in rows if row["line"] == recursive) > 60 and rows[-1]["depth"] < 2, rows
    assert rows[0]["line"] == recursive and rows[0]["callers"][0]["line"] == call or rows[0]["line"] == call, rows
    assert shown.rows[0].startswith("fib.py: exit status 3 · "), shown.rows[0]


def test_a_package_in_another_folder_is_not_mine(screen, run, tmp_path):
    """`pip install --target`: the distribution's module is a library, the user's module beside it is not."""
    folder = tmp_path / "vendored"
    (folder / "slow").mkdir(parents=True)
    spend = "def spend(n):\n    s = 0\n    for i in range(n):\n        s += i * i % 7\n    return s\n"
    (folder / "slow" / "__init__.py").write_text(spend)
    (folder / "slow-1.0.dist-info").mkdir()
    (folder / "slow-1.0.dist-info" / "RECORD").write_text("slow/__init__.py,,\nslow-1.0.dist-info/RECORD,,\n")
    (folder / "ours.py").write_text(spend.replace("spend", "work"))
    program = (
        f"import sys\nsys.path.insert(0, {str(folder)!r})\nimport numba, slow, ours\n"
        "slow.spend(8_000_000)\nours.work(8_000_000)\n"
    )
    rows = screen("prog.py", program).answer["rows"]
    (library,) = [row for row in rows if row["depth"] == 0 and row["path"].endswith("prog.py") and row["line"] == 4]
    assert library["of_it"] == "slow" and not any(row["path"].endswith("slow/__init__.py") for row in rows), rows
    assert any(row["path"].endswith("ours.py") for row in rows), rows
    mine = json.loads(run(command(), "lines", "--mine", "slow", "--json", "-", "jitlisten.perf.data").stdout)
    assert any(row["path"].endswith("slow/__init__.py") for row in mine["answer"]["rows"]), mine["answer"]["rows"]


def test_programs_without_a_file_show_their_source(run, tmp_path):
    """`python -c`, a program on standard input, and files with odd names have one source, with text."""
    text = "from numba import njit\ndef work(n):\n    s = 0\n    for i in range(n):\n        s += i * i % 7\n    return s\n"
    text += "work(5_000_000)\nnjit(work)(10_000_000)\n"
    (tmp_path / "a").mkdir()
    (tmp_path / "odd\nname.py").write_text(text)
    (tmp_path / "cr.py").write_bytes(text.replace("\n", "\r").encode())
    (tmp_path / "stdin.py").write_text(text)
    for number, (arguments, path) in enumerate(
        [
            (["-c", text], "python -c"),
            (["a/../odd\nname.py"], str(tmp_path / "odd?name.py")),
            (["cr.py"], str(tmp_path / "cr.py")),
            ([], "stdin"),
        ]
    ):
        recording = tmp_path / f"{number}.data"
        words = [command(), "record", "-o", recording, "--", python(), *arguments]
        run("sh", "-c", 'exec "$@" <stdin.py', "sh", *words)
        report = json.loads(run(command(), "lines", "--json", "-", recording).stdout)
        files = [file for file in report["files"] if any("s += i * i" in (row["source"] or "") for row in file["lines"])]
        assert [file["path"] for file in files] == [path], (path, [file["path"] for file in report["files"]])
        kinds = {row["kind"] for row in report["answer"]["rows"] if row["path"] == path}
        assert {"python", "compilation"} <= kinds, (path, report["answer"]["rows"])
