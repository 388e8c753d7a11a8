"""The report must cover the whole program: where all the time went, and the hottest lines of interpreted and compiled
code together."""

import fcntl
import json
import os
import pty
import struct
import subprocess
import termios

import pytest
from conftest import PROGRAMS, TEST_TIMEOUT_S, command, python

# All tests share the recordings, which take most of the time.
pytestmark = pytest.mark.xdist_group("answers")
PROGRAM = PROGRAMS / "mixed.py"


def line_marked(mark):
    return (
        PROGRAM.read_text()
        .splitlines()
        .index(next(row for row in PROGRAM.read_text().splitlines() if row.endswith("  # " + mark)))
        + 1
    )


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """Recordings of the same program by CPU time and by wall-clock time."""
    directory = tmp_path_factory.mktemp("answers")
    environment = {
        **os.environ,
        "JITLISTEN_DIR": str(directory),
        "NUMBA_CACHE_DIR": str(directory),
        "OPENBLAS_NUM_THREADS": "1",
    }
    recordings = {}
    for clock, options in (("cpu", []), ("wall", ["--wall"])):
        recordings[clock] = directory / f"{clock}.data"
        args = [command(), "record", *options, "-o", recordings[clock], "--", python(), PROGRAM]
        result = subprocess.run(
            [str(arg) for arg in args], env=environment, capture_output=True, text=True, timeout=TEST_TIMEOUT_S
        )
        assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr
    return recordings


def read_report(run, *args):
    return json.loads(run(command(), "lines", "--json", "-", *args).stdout)


def iterate_samples(summary):
    for name, entry in summary.items():
        if name != "compiling_in_llvm":
            yield from [entry["samples"]] if "samples" in entry else [detail["samples"] for detail in entry.values()]


def test_where_all_the_time_went(run, recordings):
    report = read_report(run, recordings["cpu"])
    summary = report["summary"]
    assert sum(iterate_samples(summary)) == report["samples"], "each sample once"
    for name in ("compiled", "interpreted", "compiling"):
        assert summary[name]["percent"] > 5, (name, summary)
    assert 0 < summary["compiling_in_llvm"]["samples"] < summary["compiling"]["samples"]
    assert summary["waiting"] == {} and "numba" in summary["importing"]
    report_without_compiling = read_report(run, recordings["cpu"], "--no-compile")
    assert report_without_compiling["summary"]["compiling"]["samples"] == 0
    left_out = sum(summary[name]["samples"] for name in ("compiling", "first_use", "loading"))
    assert report_without_compiling["samples"] == report["samples"] - left_out


def test_importing_numba_compiles_nothing(run):
    """Importing, Numba's first use and the end of Python are apart from compiling."""
    run(command(), "record", "-r", "999", "--", python(), "-c", "import numba.np.arrayobj, numba.typed")
    report = read_report(run)
    summary = report["summary"]
    assert summary["compiling"]["samples"] == summary["first_use"]["samples"] == 0, summary
    assert summary["importing"]["numba"]["samples"] > 10 and summary["ending"]["samples"] > 0
    # A user cannot change the garbage collections of an import.
    assert "garbage-collection" not in [help["rule"] for help in report["answer"]["helps"]], report["answer"]


def test_collections_that_a_program_calls_for_are_not_the_collectors(run, tmp_path):
    (tmp_path / "prog.py").write_text(
        "import gc\ngc.disable()\nkept = [[] for _ in range(300_000)]\nfor _ in range(50):\n    gc.collect()\n"
    )
    run(command(), "record", "-r", "999", "--", python(), "prog.py")
    report = read_report(run)
    assert report["summary"]["collecting"]["percent"] > 30, report["summary"]
    assert "garbage-collection" not in [help["rule"] for help in report["answer"]["helps"]], report["answer"]


#: Imports a package that only it knows, by a computed name, and collects garbage before it ends.
IMPORTING = """
import gc, importlib
table = [[[], {}] for _ in range(300_000)]
for name in ("heavy.a", "heavy.b", "heavy.c"):
    importlib.import_module(name)
from light import *
for _ in range(10):
    gc.collect()
"""


def test_imports_name_the_users_packages(run, tmp_path):
    (tmp_path / "prog.py").write_text(IMPORTING)
    (tmp_path / "heavy").mkdir()
    body = "".join(
        f"class C{n}:\n    def f(self, x):\n        return [y * {n} for y in x if y > 3]\n" for n in range(3000)
    )
    for name in ("__init__", "a", "b", "c"):
        (tmp_path / "heavy" / f"{name}.py").write_text(body if name != "__init__" else "")
    (tmp_path / "light.py").write_text(body)
    run(command(), "record", "-r", "499", "--", python(), "prog.py", PYTHONDONTWRITEBYTECODE=1)
    summary = read_report(run)["summary"]
    importing = {name: entry["weight"] for name, entry in summary["importing"].items()}
    assert importing["heavy"] > importing["light"] > sum(importing.values()) / 20, importing
    assert importing["heavy"] + importing["light"] > 0.9 * sum(importing.values()), importing
    assert summary["collecting"]["samples"] > summary["ending"]["samples"] > 0, summary


def test_waiting_is_named(run, recordings):
    report = read_report(run, recordings["wall"])
    assert report["event"] == "wall-clock" and report["summary"]["waiting"]["sleep"]["weight"] > 0.7e9, report[
        "summary"
    ]


def test_hottest_lines_of_the_whole_program(run, recordings):
    report = read_report(run, recordings["cpu"])
    hottest = {(os.path.basename(row["path"]), row["line"]): row for row in report["hottest"][:10]}
    for mark, kind in (("interpreted", "python"), ("compiled", "compiled"), ("array", "compiled")):
        row = hottest.get(("mixed.py", line_marked(mark)))
        assert row and row["kind"] == kind and row["self_percent"] > 2, (mark, report["hottest"][:10])
    assert 0 < hottest["mixed.py", line_marked("interpreted")]["in_c"], "int, float, append"
    assert not any("0x" in row["name"] for row in report["functions"] if "array expression" in row["name"])
    assert not any(name == "mixed.py" and line == 1 for name, line in hottest)


def test_what_a_person_sees(run, recordings):
    text = run(command(), "lines", recordings["cpu"]).stdout
    headline = text.splitlines()[0]
    assert headline.startswith("mixed.py · ") and " of CPU time in " in headline and " · 1 thread · " in headline
    for word in ("compiled code", "your Python", "compiling", "importing"):
        assert word in text, text
    report = read_report(run, recordings["cpu"])
    waited = report["elapsed"] - report["answer"]["weight"] - report["answer"]["run_queue"]
    # On a busy machine the run queue may leave too small a share for the row of the wait.
    assert "off the processor" in text or waited < 0.06 * report["elapsed"], text
    headings = ["your lines", "what helps", "  activity", "| your functions", "| libraries, with", "|  line | source"]
    assert sorted(headings, key=text.index) == headings
    everything = run(command(), "lines", "-a", recordings["cpu"]).stdout
    hottest = everything.split("hottest lines\n")[-1].split("| your functions")[0]
    assert "<string>:2 by mixed.py:" in hottest, "generated code is named by its caller"
    assert "site-packages/numba/core" not in text and "_bootstrap" not in text, "libraries are folded"
    selected = run(command(), "lines", "--function", "parse", recordings["cpu"]).stdout
    assert "| parse" in selected and "smooth" not in selected.split("| functions")[1].split("mixed.py")[0]


@pytest.mark.parametrize("columns", [80, 120])
def test_it_fits_the_terminal(environment, recordings, columns):
    environment.pop("COLUMNS", None)
    text = run_on_terminal(environment, columns, command(), "lines", "--color", "never", recordings["cpu"])
    rows = text.splitlines()
    assert len(rows) > 30 and max(map(len, rows)) <= columns, max(rows, key=len)
    assert ("  samples |" in text) == (columns >= 110)


#: A library with a compiled function, an interpreted function and generated code.
LIBRARY = """
import time
from numba import njit

@njit
def compiled(n):
    total = 0.0
    for i in range(n):
        total += (i % 7) * 0.5  # compiled
    return total

def interpreted():
    return [i * i for i in range(1000)]

made = {}
exec(compile("def generated(n):\\n    return sum(i * i for i in range(n))", "<generated>", "exec"), made)

def spend(seconds, work):
    end = time.process_time() + seconds
    while time.process_time() < end:
        work()
"""


def test_a_program_of_libraries(environment, run, tmp_path):
    """A program that spends nearly all its time in a library. Each library has a row that lists its functions, compiled
    ones first; the user's lines come first of all."""
    package = tmp_path / "site-packages" / "slow"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(LIBRARY)
    program = tmp_path / "prog.py"
    program.write_text(
        "import sys\nsys.path.insert(0, 'site-packages')\nimport"
        " slow\nslow.compiled(1)\nslow.compiled(1.5)\nslow.spend(1.0, lambda: slow.compiled(100_000))\nslow.spend(0.5,"
        " slow.interpreted)\nslow.spend(0.5, lambda: slow.made['generated'](1000))\n"
    )
    run(command(), "record", "-o", "a.data", "prog.py")
    environment.pop("COLUMNS", None)
    for columns in (80, 120):
        environment["PWD"] = str(tmp_path)
        text = run_on_terminal(environment, columns, command(), "lines", "--color", "never", tmp_path / "a.data")
        rows = text.splitlines()
        assert max(map(len, rows)) <= columns
        (compiled,) = [row for row in rows if " LLVM " in row and " slow.compiled(" in row]
        assert "64), and 1 more" in compiled, text
        assert "next run: 2 compilations again" in text and "cache=True not set" not in text, "the user cannot set it"
        yours, libraries = text.split("| your functions")[1].split("| libraries")
        assert "slow.compiled" not in yours and "| <lambda>" in yours, text
        libraries, sources = libraries.split("|  line | source", 1)
        (library_row,) = [row for row in libraries.splitlines() if "| slow " in row]
        assert library_row.split("| slow ")[1].split()[0] == "compiled", "compiled functions first"
        assert "| Numba's compiler" in libraries and "| import system" in libraries and "| numba.core" not in text
        assert libraries.splitlines()[-2].endswith("prog.py") and "total += (i % 7) * 0.5" in sources, (
            "the user's files first"
        )
        tree = text.split("your lines")[1].split("  activity")[0]
        line = LIBRARY.splitlines().index("        total += (i % 7) * 0.5  # compiled") + 1
        assert f"slow/__init__.py:{line} " in tree, text
        (generated,) = [row for row in tree.splitlines() if "<generated>:2 by prog.py:8" in row]
        assert "slow.spend(" in generated, "the line that it runs for"
    all_functions = run(command(), "lines", "--all", "a.data").stdout
    assert (
        "| functions of libraries" in all_functions
        and "| numba.core" not in all_functions.split("| functions of libraries")[0]
    )


#: Works and sleeps for a second each, in turns, beside six busy processes on the same two processors.
BUSY = """
import os, subprocess, sys, time
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
others = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(6)]
def work(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until: sum(range(2000))  # worked
try:
    for _ in range(20):
        work(0.05)
        time.sleep(0.05)  # slept
finally:
    for other in others: other.kill()
print(int(open(f"/proc/self/task/{os.getpid()}/schedstat").read().split()[1]))
"""


def test_a_busy_machine(run, tmp_path):
    """The time on the run queue is a row of its own, and no part of the lines that waited for a processor."""
    (tmp_path / "busy.py").write_text(BUSY)
    marks = {mark: BUSY.split(mark)[0].count("\n") + 1 for mark in ("# worked", "# slept")}
    for options in (), ("--wall",):
        queued = int(run(command(), "record", "-o", "f.data", *options, "--", python(), "busy.py").stdout)
        report = read_report(run, "f.data")
        lines = {
            row["line"]: row for file in report["files"] if file["path"].endswith("busy.py") for row in file["lines"]
        }
        assert 0.7e9 < lines[marks["# worked"]]["self_weight"] < 1.5e9, (options, lines)
        assert 0.8 * queued < report["answer"]["run_queue"] < 1.2 * queued + 0.2e9, (queued, report["answer"])
        assert "run queue" in run(command(), "lines", "f.data").stdout
    assert 0.7e9 < lines[marks["# slept"]]["self_weight"] < 1.5e9, lines


#: Bursts that are shorter than the interval of the samples, and threads that are hardly longer.
BURSTS = """
import threading, time
def burst(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:  # burst
        for _ in range(2000): pass  # burst
for _ in range(200):
    burst(0.003)
    time.sleep(0.01)
def task():
    until = time.thread_time() + 0.006
    while time.thread_time() < until:  # task
        for _ in range(2000): pass  # task
for _ in range(200):
    thread = threading.Thread(target=task)
    thread.start()
    thread.join()
"""


def wall_seconds_by_mark(run, tmp_path, program):
    """Records a program by wall-clock time. Returns the seconds of its lines by the comment at their end."""
    (tmp_path / "marked.py").write_text(program)
    run(command(), "record", "--wall", "-o", "f.data", "--", python(), "marked.py")
    report = read_report(run, "f.data")
    (file,) = (file for file in report["files"] if file["path"].endswith("marked.py"))
    marks = {number: text.partition("# ")[2] for number, text in enumerate(program.splitlines(), 1)}
    seconds = dict.fromkeys(marks.values(), 0.0)
    for line in file["lines"]:
        seconds[marks[line["line"]]] += line["self_weight"] / 1e9
    return seconds


def test_bursts_and_short_threads_by_wall_clock_time(run, tmp_path):
    """They are at their lines, although most of them end between two samples."""
    seconds = wall_seconds_by_mark(run, tmp_path, BURSTS)
    assert 0.6 * 0.5 < seconds["burst"] < 0.6 * 1.6, seconds
    assert 1.2 * 0.6 < seconds["task"] < 1.2 * 1.6, seconds


ALTERNATING = """import time
def spend(seconds, mark):
    until = time.thread_time() + seconds
    if mark == "first":
        while time.thread_time() < until: pass  # first
    else:
        while time.thread_time() < until: pass  # second
for _ in range(160):
    time.sleep(0.03)
    spend(0.005, "first")
    spend(0.005, "second")
"""


def test_code_between_waits_has_its_wall_clock_time(run, tmp_path):
    """The code after a wait once lost time to the code before the next wait: they had 0.1 to 1.5 of theirs here."""
    seconds = wall_seconds_by_mark(run, tmp_path, ALTERNATING)
    # Some 160 samples of each.
    assert all(0.8 * 0.75 < seconds[mark] < 0.8 * 1.25 for mark in ("first", "second")), seconds


def test_a_disabled_compiler_is_named(run, tmp_path):
    """With NUMBA_DISABLE_JIT it is no advice to use @njit."""
    (tmp_path / "disabled.py").write_text(
        "from numba import njit\n@njit\ndef total(n):\n    s = 0\n    for i in range(n): s += i & 3\n    return s\n"
        "total(20_000_000)\n"
    )
    run(command(), "record", "-o", "f.data", "--", python(), "disabled.py", NUMBA_DISABLE_JIT=1)
    (text,) = (help["text"] for help in read_report(run, "f.data")["answer"]["helps"] if help["rule"] == "interpreted")
    assert text.startswith("total (disabled.py:5)") and "NUMBA_DISABLE_JIT" in text and "njit" not in text, text


def test_threads_of_python_stay_apart_from_the_main_threads_lines(run, tmp_path):
    """What they run was once below the main thread's nearest call of another function of the same file."""
    (tmp_path / "apart.py").write_text(
        "import threading\nimport numpy as np\nfrom numba import njit\n"
        "@njit\ndef light(n):\n    s = 0.0\n    for i in range(n): s += np.cos(i * 1.5)\n    return s\n"
        "@njit(nogil=True)\ndef heavy(n):\n    s = 0.0\n    for i in range(n): s += np.sin(i * 1.5)\n    return s\n"
        "heavy(1)\nlight(5_000_000)\n"
        "threads = [threading.Thread(target=heavy, args=(30_000_000,)) for _ in range(2)]\n"
        "for thread in threads: thread.start()\nfor thread in threads: thread.join()\n"
    )
    run(command(), "record", "-o", "f.data", "--", python(), "apart.py")
    rows = read_report(run, "f.data")["answer"]["rows"]
    heavy = [row for row in rows if row["line"] == 12]
    assert [row["depth"] for row in heavy] == [0], rows
    light = sum(row["total_weight"] for row in rows if row["line"] == 15)
    assert light < heavy[0]["total_weight"], rows


def test_waits_for_files_and_signals_are_named(run, tmp_path):
    """Such a wait once counted as Python that could be compiled."""
    (tmp_path / "waits.py").write_text(
        "import fcntl, os, signal, subprocess, sys, threading, time\n"
        "signal.sigtimedwait([signal.SIGUSR2], 0.6)\n"
        "text = \"import fcntl, time; f = open('l', 'w'); fcntl.flock(f, fcntl.LOCK_EX); \"\n"
        "text += 'print(1, flush=True); time.sleep(0.6)'\n"
        "child = subprocess.Popen([sys.executable, '-S', '-c', text], stdout=subprocess.PIPE)\n"
        "child.stdout.read(1)\n"
        "fcntl.flock(open('l', 'w'), fcntl.LOCK_EX)\n"
        "os.mkfifo('p'); threading.Timer(0.6, lambda: open('p', 'w').close()).start()\n"
        "open('p').close()\n"
    )
    run(command(), "record", "--wall", "-o", "f.data", "--", python(), "waits.py")
    report = read_report(run, "f.data")
    waiting = report["summary"]["waiting"]
    assert waiting["sleep"]["weight"] > 0.5e9 and waiting["input and output"]["weight"] > 1e9, report["summary"]
    assert not [help for help in report["answer"]["helps"] if help["rule"] == "interpreted"], report["answer"]["helps"]


def test_idle_threads_of_pools_are_outside(run, tmp_path):
    """Two pools have nothing to do while the main thread sleeps and works."""
    (tmp_path / "pools.py").write_text(
        "import time\nfrom concurrent.futures import ThreadPoolExecutor\nfrom multiprocessing.pool import ThreadPool\n"
        "executor, pool = ThreadPoolExecutor(4), ThreadPool(4)\n"
        "list(executor.map(abs, range(100))), pool.map(abs, range(100))\n"
        "for _ in range(10):\n    time.sleep(0.2)\n    until = time.thread_time() + 0.1\n"
        "    while time.thread_time() < until: sum(range(2000))\n"
        "pool.terminate()\n"
    )
    run(command(), "record", "--wall", "-o", "f.data", "--", python(), "pools.py")
    report = read_report(run, "f.data")
    assert sum(iterate_samples(report["summary"])) == report["samples"], "each sample once"
    assert 50 < report["summary"]["waiting"]["sleep"]["percent"] < 75, report["summary"]
    assert report["answer"]["idle"] >= 8, report["answer"]
    assert "idle threads of pools, outside the 100 %" in run(command(), "lines", "f.data").stdout


def test_who_waits_for_pythons_lock(run, tmp_path):
    """One of two Python threads always waits for the GIL, and the main thread waits for both."""
    (tmp_path / "two.py").write_text(
        "import threading, time\n"
        "def work():\n    end = time.monotonic() + 4\n    while time.monotonic() < end: sum(range(1000))\n"
        "threads = [threading.Thread(target=work) for _ in range(2)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
    )
    run(command(), "record", "--wall", "-o", "two.data", "two.py")
    waiting = read_report(run, "two.data")["summary"]["waiting"]
    assert waiting["the GIL"]["weight"] > 0.5e9 and waiting["threads"]["weight"] > 1e9, waiting
    text = run(command(), "lines", "two.data").stdout
    assert "waiting " in text and "the GIL " in text


def test_code_that_is_compiled_again_is_said(run, tmp_path):
    """Recompilation is reported even if it is too fast for a sample."""
    (tmp_path / "cached.py").write_text(
        "from numba import njit\n@njit(cache=True)\ndef one(x):\n    return x + 1\none(1)\n"
    )
    run(python(), "cached.py")
    message = "1 function compiled again: its entry in Numba's cache had no lines"
    assert message in run(command(), "lines", "-r", "4", "cached.py").stdout
    assert message not in run(command(), "lines", "cached.py").stdout, "the second time it has"


def test_it_is_data_for_python(run, recordings):
    code = (
        "import sys, jitlisten\nreport = jitlisten.read(sys.argv[1])\nrows = report.rows()\nprint(sum(row['seconds']"
        " for row in rows if row['kind'] == 'python' and row['file'].endswith('mixed.py')) > 0.3)\ntry:"
        " print(report.lines().groupby('line').seconds.sum().max() > 0.3)\nexcept jitlisten.Error as error:"
        " print('pandas' in str(error))\ntry: jitlisten.read('nothing')\nexcept jitlisten.Error as error:"
        " print(error)\n"
    )
    assert run(python(), "-c", code, recordings["cpu"]).stdout == "True\nTrue\nno such file: nothing\n"


def test_stacks_are_data_for_python(run, recordings):
    code = """
import sys, jitlisten
report = jitlisten.read(sys.argv[1], stacks=True)
rows = report.stack_rows()
assert sum(row["samples"] for row in rows) == report.data["samples"]
assert abs(sum(row["seconds"] for row in rows) * 1e9 - report.data["weight"]) < 1e3
deep = [row for row in rows if len(row["stack"]) > 1 and row["tid"] == row["pid"] and row["host"]]
assert any(row["file"] and row["file"].endswith("mixed.py") and row["line"] for row in deep), rows
try:
    jitlisten.read(sys.argv[1]).stack_rows()
except jitlisten.Error as error:
    print("stacks=True" in str(error))
try:
    tree = report.to_hatchet()
    assert abs(tree.dataframe["time"].sum() * 1e9 - report.data["weight"]) < 1e3
    roots = [node for node in tree.graph.roots]
    assert abs(tree.dataframe.loc[roots]["time (inc)"].sum() * 1e9 - report.data["weight"]) < 1e3
except jitlisten.Error as error:
    assert "llnl-hatchet" in str(error), error
"""
    assert run(python(), "-c", code, recordings["cpu"]).stdout == "True\n"


def test_differences_are_in_seconds(run, recordings):
    text = run(command(), "diff", recordings["cpu"], recordings["cpu"], "--all").stdout
    assert "total s: before, after, change" in text and "| compiling" in text and "| parse" in text and "+0.00 " in text
    for columns in (80, 120):
        narrow = run_on_terminal(
            dict(os.environ), columns, command(), "diff", "--all", recordings["cpu"], recordings["cpu"]
        )
        assert max(map(len, narrow.splitlines())) <= columns, narrow
        assert "| your Python" in narrow and "| parse" in narrow and "| mixed.py:" in narrow, narrow


def run_on_terminal(environment, columns, *args):
    """Returns the output of a command on a terminal that is ``columns`` wide."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = subprocess.Popen(
        [str(word) for word in args], env=environment, stdout=terminal, stderr=subprocess.DEVNULL
    )
    os.close(terminal)
    output = b""
    while True:
        try:
            chunk = os.read(controller, 65536)
        except OSError:  # EIO: the other end is closed
            break
        if not chunk:
            break
        output += chunk
    os.close(controller)
    assert process.wait(TEST_TIMEOUT_S) == 0
    return output.decode().replace("\r\n", "\n")
