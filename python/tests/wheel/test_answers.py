"""The report answers for the whole program: where all the time went, and which lines are the hottest, interpreted and
compiled alike."""

import fcntl
import json
import os
import pty
import struct
import subprocess
import termios

import pytest
from conftest import PATIENCE, PROGRAMS, command, python

# Its recordings, which take most of the time, are made once.
pytestmark = pytest.mark.xdist_group("answers")
PROGRAM = PROGRAMS / "mixed.py"


def line_of(mark):
    return (
        PROGRAM.read_text()
        .splitlines()
        .index(next(row for row in PROGRAM.read_text().splitlines() if row.endswith("  # " + mark)))
        + 1
    )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Of processor time, and of wall-clock time."""
    place = tmp_path_factory.mktemp("answers")
    environment = {
        **os.environ, "JITLISTEN_DIR": str(place), "NUMBA_CACHE_DIR": str(place), "OPENBLAS_NUM_THREADS": "1"
    }
    files = {}
    for name, options in (("cpu", []), ("wall", ["--wall"])):
        files[name] = place / f"{name}.data"
        words = [command(), "record", *options, "-o", files[name], "--", python(), PROGRAM]
        done = subprocess.run(
            [str(word) for word in words], env=environment, capture_output=True, text=True, timeout=PATIENCE
        )
        assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    return files


def read(run, *words):
    return json.loads(run(command(), "lines", "--json", "-", *words).stdout)


def samples(summary):
    for name, part in summary.items():
        if name != "compiling_in_llvm":
            yield from [part["samples"]] if "samples" in part else [one["samples"] for one in part.values()]


def test_where_all_the_time_went(run, recorded):
    report = read(run, recorded["cpu"])
    summary = report["summary"]
    assert sum(samples(summary)) == report["samples"], "each sample once"
    for name in ("compiled", "interpreted", "compiling"):
        assert summary[name]["percent"] > 5, (name, summary)
    assert 0 < summary["compiling_in_llvm"]["samples"] < summary["compiling"]["samples"]
    assert summary["waiting"] == {} and "numba" in summary["importing"]
    without = read(run, recorded["cpu"], "--no-compile")
    assert without["summary"]["compiling"]["samples"] == 0
    assert without["samples"] == report["samples"] - summary["compiling"]["samples"]


def test_waiting_is_named(run, recorded):
    report = read(run, recorded["wall"])
    assert report["event"] == "wall-clock" and report["summary"]["waiting"]["sleep"]["weight"] > 0.7e9, report[
        "summary"
    ]


def test_hottest_lines_of_the_whole_program(run, recorded):
    report = read(run, recorded["cpu"])
    hottest = {(os.path.basename(row["path"]), row["line"]): row for row in report["hottest"][:10]}
    for mark, kind in (("interpreted", "python"), ("compiled", "compiled"), ("array", "compiled")):
        row = hottest.get(("mixed.py", line_of(mark)))
        assert row and row["kind"] == kind and row["self_percent"] > 2, (mark, report["hottest"][:10])
    assert 0 < hottest["mixed.py", line_of("interpreted")]["in_c"], "int, float, append"
    assert not any("0x" in row["name"] for row in report["functions"] if "array expression" in row["name"])
    assert not any(name == "mixed.py" and line == 1 for name, line in hottest)


def test_what_a_person_sees(run, recorded):
    text = run(command(), "lines", recorded["cpu"]).stdout
    first = text.splitlines()
    assert (
        first[0].startswith("mixed.py · Python 3.") and " of processor time in " in first[0] and "1 thread" in first[0]
    )
    for word in ("compiled code", "your Python", "compiling", "importing", "off the processor", "hottest lines"):
        assert word in text, text
    order = ["hottest lines", "| your functions", "| libraries, with their functions", "|  line | source"]
    assert sorted(order, key=text.index) == order
    assert "<string>:2 by mixed.py:" in text, "generated code is named by its caller"
    assert "site-packages/numba/core" not in text and "_bootstrap" not in text, "libraries are folded"
    only = run(command(), "lines", "--function", "parse", recorded["cpu"]).stdout
    assert "| parse" in only and "smooth" not in only.split("| functions")[1].split("mixed.py")[0]


@pytest.mark.parametrize("columns", [80, 120])
def test_it_fits_the_terminal(environment, recorded, columns):
    environment.pop("COLUMNS", None)
    text = on_a_terminal(environment, columns, command(), "lines", "--color", "never", recorded["cpu"])
    rows = text.splitlines()
    assert len(rows) > 30 and max(map(len, rows)) <= columns, max(rows, key=len)
    assert ("  samples |" in text) == (columns >= 110)


#: A library with a function that is compiled, one that is interpreted, and one that generates code.
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
    """Whose time is nearly all a library's: each is a row with its functions, compiled ones first, and the user's lines
    come first."""
    place = tmp_path / "site-packages" / "slow"
    place.mkdir(parents=True)
    (place / "__init__.py").write_text(LIBRARY)
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
        text = on_a_terminal(environment, columns, command(), "lines", "--color", "never", tmp_path / "a.data")
        rows = text.splitlines()
        assert max(map(len, rows)) <= columns
        compiled = rows.index(next(row for row in rows if " slow.compiled(" in row))
        assert " LLVM " in rows[compiled] and "64), and 1 more" in rows[compiled] and compiled < 20, text
        assert "next run: 2 compilations again" in text and "cache=True not set" in text
        yours, libraries = text.split("| your functions")[1].split("| libraries")
        assert "slow.compiled" not in yours and "| <lambda>" in yours, text
        libraries, sources = libraries.split("|  line | source", 1)
        (slow,) = [row for row in libraries.splitlines() if "| slow " in row]
        assert slow.split("| slow ")[1].split()[0] == "compiled", "compiled functions first"
        assert "| Numba's compiler" in libraries and "| import system" in libraries and "| numba.core" not in text
        assert (
            libraries.splitlines()[-2].endswith("prog.py") and "total += (i % 7) * 0.5" in sources
        ), "the user's files first"
        hottest = text.split("hottest lines")[1].split("your lines")[0]
        line = LIBRARY.splitlines().index("        total += (i % 7) * 0.5  # compiled") + 1
        assert f"__init__.py:{line} " in hottest and "<generated>:2 by prog.py:8" in hottest, text
        (generated,) = [row for row in hottest.splitlines() if "<generated>:2 by" in row]
        assert "slow.spend(" in generated, "the line that it runs for"
    every = run(command(), "lines", "--all", "a.data").stdout
    assert "| functions of libraries" in every and "| numba.core" not in every.split("| functions of libraries")[0]


def test_who_waits_for_pythons_lock(run, tmp_path):
    """Of two threads that interpret one waits, and the main thread for both."""
    (tmp_path / "two.py").write_text(
        "import threading, time\n"
        "def work():\n    end = time.monotonic() + 2\n    while time.monotonic() < end: sum(range(1000))\n"
        "threads = [threading.Thread(target=work) for _ in range(2)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
    )
    run(command(), "record", "--wall", "-o", "two.data", "two.py")
    waiting = read(run, "two.data")["summary"]["waiting"]
    assert waiting["the GIL"]["weight"] > 0.5e9 and waiting["threads"]["weight"] > 1e9, waiting
    text = run(command(), "lines", "two.data").stdout
    assert "waiting " in text and "the GIL " in text


def test_code_that_is_compiled_again_is_said(run, tmp_path):
    """Also where that takes so short that no sample is of it."""
    (tmp_path / "cached.py").write_text(
        "from numba import njit\n@njit(cache=True)\ndef one(x):\n    return x + 1\none(1)\n"
    )
    run(python(), "cached.py")
    said = "1 function compiled again: its entry in Numba's cache had no lines"
    assert said in run(command(), "lines", "-r", "4", "cached.py").stdout
    assert said not in run(command(), "lines", "cached.py").stdout, "the second time it has"


def test_it_is_data_for_python(run, recorded):
    code = (
        "import sys, jitlisten\nreport = jitlisten.read(sys.argv[1])\nrows = report.rows()\nprint(sum(row['seconds']"
        " for row in rows if row['kind'] == 'python' and row['file'].endswith('mixed.py')) > 0.3)\ntry:"
        " print(report.lines().groupby('line').seconds.sum().max() > 0.3)\nexcept jitlisten.Error as error:"
        " print('pandas' in str(error))\ntry: jitlisten.read('nothing')\nexcept jitlisten.Error as error:"
        " print(error)\n"
    )
    assert run(python(), "-c", code, recorded["cpu"]).stdout == "True\nTrue\nno such file: nothing\n"


def test_differences_are_in_seconds(run, recorded):
    text = run(command(), "diff", recorded["cpu"], recorded["cpu"], "--all").stdout
    assert "seconds: before, after, change" in text and "| compiling" in text and "| parse" in text and "+0.00 " in text
    for columns in (80, 120):
        narrow = on_a_terminal(dict(os.environ), columns, command(), "diff", "--all", recorded["cpu"], recorded["cpu"])
        assert max(map(len, narrow.splitlines())) <= columns, narrow
        assert "| your Python" in narrow and "| parse" in narrow and "| mixed.py:" in narrow, narrow


def on_a_terminal(environment, columns, *words):
    """What a command writes on a terminal of so many columns."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    started = subprocess.Popen([str(word) for word in words], env=environment, stdout=its, stderr=subprocess.DEVNULL)
    os.close(its)
    text = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # EIO: the other side is closed
            break
        if not part:
            break
        text += part
    os.close(ours)
    assert started.wait(PATIENCE) == 0
    return text.decode().replace("\r\n", "\n")
