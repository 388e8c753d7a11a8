"""The first screen of ``jitlisten lines`` must name the line that costs most and what helps, on 40 lines of 80
columns."""

import json
import subprocess
import time

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
import time

import numpy as np
from numba import njit, prange

@njit(parallel=True)
def scale(a, f):
    out = np.zeros(a.size)
    for i in prange(a.size):
        out[i] = a[i] * f
    return out

a = scale(np.random.rand(255), 1.0)
end = time.process_time() + 4
while time.process_time() < end:
    for k in range(100):
        a = scale(a, 1.000001)  # call
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
    def __init__(self, environment, directory, name, text, *options, arguments=(), status=0):
        (directory / name).write_text(text)
        environment = {**environment, "COLUMNS": "80", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "2"}
        environment["NUMBA_THREADING_LAYER"] = "omp"
        args = [command(), "lines", "--color", "never", *options, "--", python(), name, *arguments]
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
        next_step = "jitlisten.perf.data: jitlisten lines --open (page)"
        (end,) = [index for index, line in enumerate(lines) if line.startswith(next_step)]
        self.rows = lines[: end + 1]
        assert end < 40 and max(map(len, self.rows)) <= 80, self.text
        output = subprocess.run(
            [str(command()), "lines", "--json", "-", str(directory / "jitlisten.perf.data")],
            capture_output=True,
            check=True,
            timeout=TEST_TIMEOUT_S,
        ).stdout
        self.report = json.loads(output)
        self.answer = self.report["answer"]

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
    shares = shown.answer["shares"]
    assert sum(share["samples"] for share in shares.values()) == shown.answer["samples"]
    assert shares["libraries"]["samples"] >= row["parts"]["numpy"]["samples"], "as in the row"
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
    text = "from numba import njit\ndef work(n):\n    s = 0\n    for i in range(n):\n        s += i * i % 7\n"
    text += "    return s\nwork(5_000_000)\nnjit(work)(10_000_000)\n"
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
        files = [
            file for file in report["files"] if any("s += i * i" in (row["source"] or "") for row in file["lines"])
        ]
        assert [file["path"] for file in files] == [path], (path, [file["path"] for file in report["files"]])
        kinds = {row["kind"] for row in report["answer"]["rows"] if row["path"] == path}
        assert {"python", "compilation"} <= kinds, (path, report["answer"]["rows"])
    # The text of a program in a pipe, such as a here-document, is unknown.
    words = [command(), "record", "-o", tmp_path / "pipe.data", "--", python(), "-"]
    run("sh", "-c", 'cat stdin.py | "$@"', "sh", *words)
    rows = json.loads(run(command(), "lines", "--json", "-", tmp_path / "pipe.data").stdout)["answer"]["rows"]
    assert {7, 8} <= {row["line"] for row in rows if row["path"] == "<stdin>"}, rows


def test_code_that_a_library_generates_is_no_line_of_a_program_without_a_file(run):
    generated = "end = time.thread_time() + 0.3\nwhile time.thread_time() < end: pass"
    text = f"import time\nx = 1\nexec({generated!r})  # call\n"
    report = json.loads(run(command(), "lines", "--json", "-", "--", python(), "-c", text).stdout)
    rows = [(row["path"], row["line"]) for row in report["answer"]["rows"] if row["parts"].get("Python")]
    assert ("python -c", 3) in rows and ("python -c", 2) not in rows, rows


#: Functions that Numba cannot cache, and one that is compiled for many types.
NOT_CACHED = """
import numpy as np
from numba import float64, njit
from numba.experimental import jitclass

@jitclass([("total", float64)])
class Sum:
    def __init__(self):  # constructor
        self.total = 0.0

    def add(self, values):
        for value in np.sort(values):
            self.total += value

@njit(cache=True)
def square(x):
    return np.sort(x) ** 2

def make(function):
    @njit(cache=True)  # closure
    def outer(x):
        return function(x).sum()
    return outer

@njit
def first(values, x):  # many
    return np.argsort(x)[0] + values[0]

Sum().add(np.ones(3))
make(square)(np.ones(3))
for n in range(1, 7):
    first(tuple(range(n)), np.ones(3))
"""

#: A loop in Python, and calls of the user's Python by pandas.
INTERPRETED = """
import sys
sys.path.insert(0, "vendored")
import numba, numpy as np, pandas

def gaps(a):
    found = 0.0
    for i in range(a.size - 1):
        found += abs(a[i + 1] - a[i])  # loop
    return found

def double(x):
    return sum((x, x, x, -x))

gaps(np.ones(8_000_000))  # twice as long as `double`, for the order to be sure
pandas.apply(double, range(6_000_000))  # callback
"""

#: Calls of a compiled function by pandas.
COMPILED_CALLBACK = """
import sys
sys.path.insert(0, "vendored")
import pandas
from numba import njit

@njit
def harmonic(x):
    total = 0.0
    for i in range(100):
        total += x / (i + 1)
    return total

harmonic(1.0)
pandas.apply(harmonic, [n / 7 for n in range(1_000_000)])  # callback
"""

#: Threads that call a compiled function.
THREADS = """
import sys
from concurrent.futures import ThreadPoolExecutor
from numba import njit

@njit(nogil=len(sys.argv) > 1)
def spin(n):
    x = 1
    for i in range(n):
        x = x * 1103515245 % 2147483647 + i
    return x

spin(1)
with ThreadPoolExecutor(3) as pool:
    list(pool.map(lambda _: spin(10_000_000), range(30)))  # call
"""


def test_functions_that_cannot_be_cached_are_named(screen):
    """No advice promises that ``cache=True`` helps a jitclass, or a closure over a compiled function."""
    shown = screen("prog.py", NOT_CACHED)
    helps = {help["rule"]: help for help in shown.answer["helps"]}
    assert set(helps) == {"many-signatures", "not-cached", "jitclass-not-cached"} or set(helps) == {
        "many-signatures",
        "not-cached",
        "closure-not-cached",
    }, shown.text
    assert "first (prog.py:" in helps["many-signatures"]["text"] and " 6 comb" in helps["many-signatures"]["text"]
    rows = {row["line"]: row for row in shown.answer["rows"] if row["kind"] == "compilation"}
    assert rows[line_of(NOT_CACHED, "constructor")]["function"].endswith("Sum.__init__"), shown.text
    reasons = {row["function"].split(".")[-1]: row["why"] for row in shown.report["compilations"] if row["depth"] == 0}
    assert reasons["outer"] == "cannot be cached: a closure over a compiled function", reasons
    assert reasons["__init__"] == reasons["add"] == "cannot be cached: a jitclass", reasons


@pytest.fixture
def vendored_pandas(tmp_path):
    """A package with the name of pandas that calls a function for each value."""
    package = tmp_path / "vendored" / "pandas"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "def apply(f, values):\n    for value in values:\n        f(value), str(value), repr(value)\n"
    )
    (tmp_path / "vendored" / "pandas-1.0.dist-info").mkdir()
    (tmp_path / "vendored" / "pandas-1.0.dist-info" / "RECORD").write_text("pandas/__init__.py,,\n")


def test_loops_in_python_are_named(screen, vendored_pandas):
    shown = screen("prog.py", INTERPRETED)
    helps = {help["rule"]: help for help in shown.answer["helps"]}
    assert helps["interpreted"]["line"] == line_of(INTERPRETED, "loop"), shown.text
    assert "gaps (prog.py:" in helps["interpreted"]["text"], shown.text
    assert helps["pandas-calls"]["line"] == line_of(INTERPRETED, "callback"), shown.text
    assert "pandas calls double (prog.py:" in helps["pandas-calls"]["text"], shown.text


def test_calls_of_compiled_functions_by_pandas_are_named(screen, vendored_pandas):
    shown = screen("prog.py", COMPILED_CALLBACK)
    helps = {help["rule"]: help for help in shown.answer["helps"]}
    assert helps["pandas-calls"]["line"] == line_of(COMPILED_CALLBACK, "callback"), shown.text
    assert "pandas calls harmonic (prog.py:" in helps["pandas-calls"]["text"], shown.text
    assert 'engine="numba"' in helps["pandas-calls"]["text"], shown.text


def test_no_compiler_is_advised_for_strings(screen):
    # Python exports the functions that join strings. Those that sort are unnamed in a stripped Python.
    text = "words = [str(k % 7919) for k in range(100_000)]\nfor k in range(2_000):\n    '-'.join(words)\n"
    shown = screen("prog.py", text)
    assert "interpreted" not in [help["rule"] for help in shown.answer["helps"]], shown.text


def test_child_processes_that_are_not_recorded_are_mentioned(screen):
    child = "import time\nwhile time.process_time() < 0.5: sum(range(1000))"
    program = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}], check=True)\n{child}\n"
    shown = screen("prog.py", program)
    assert shown.answer["unrecorded_children"] >= 0.5e9, shown.answer
    assert any(row.endswith("child processes, not recorded (use -s), outside the 100 %") for row in shown.rows), (
        shown.text
    )


def test_threads_that_keep_the_lock_are_named(screen):
    for options, is_named in [([], True), (["free"], False)]:
        shown = screen("prog.py", THREADS, arguments=options)
        lines = [help["line"] for help in shown.answer["helps"] if help["rule"] == "serial-threads"]
        assert lines == ([line_of(THREADS, "call")] if is_named else []), shown.text


def test_the_page_opens_in_a_browser(run, environment, tmp_path):
    """Without a display, the address of the page is printed. With one, the desktop's opener gets it."""
    (tmp_path / "prog.py").write_text("sum(i * i for i in range(3_000_000))\n")
    page = (tmp_path / "é.data.html").as_uri()
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        environment.pop(name, None)
    result = run(command(), "lines", "--open", "-o", "é.data", "prog.py")
    assert result.stdout == page + "\n" and "jitlisten lines --open é.data" in result.stderr, result
    (tmp_path / "bin").mkdir()
    opener = tmp_path / "bin" / "xdg-open"
    opener.write_text('#!/bin/sh\necho "$1" >address.new && mv address.new address\n')
    opener.chmod(0o755)
    path = "%s:%s" % (opener.parent, environment["PATH"])
    assert run(command(), "lines", "--open", "é.data", DISPLAY=":0", PATH=path).stdout == ""
    end = time.monotonic() + TEST_TIMEOUT_S
    while not (tmp_path / "address").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    assert (tmp_path / "address").read_text() == page + "\n"


def test_lines_without_a_row_of_their_own_share_one(screen):
    burn = "import time\ndef burn(s):\n    end = time.thread_time() + s\n    while time.thread_time() < end: pass\n"
    shown = screen("prog.py", burn + "burn(0.1)\n" * 18)
    assert any(row.endswith("below other lines of yours") for row in shown.rows), shown.text


def test_functions_of_a_killed_process_are_no_compiled_code(run, tmp_path):
    (tmp_path / "prog.py").write_text(
        "import os, signal, time\n"
        "end = time.thread_time() + 0.1\n"
        "while time.thread_time() < end: pass\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    report = json.loads(run(command(), "lines", "--json", "-", "--", python(), "prog.py", status=137).stdout)
    shares = report["answer"]["shares"]
    assert "compiled" not in shares and shares["Python"]["samples"] > 0, shares
