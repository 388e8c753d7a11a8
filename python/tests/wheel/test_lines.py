"""`jitlisten lines` with recordings of the installed command: several recordings added up, changed sources, interrupted
runs."""

import contextlib
import json
import lzma
import os
import pathlib
import pty
import shutil
import signal
import subprocess
import time
import zipapp

import pytest
from conftest import PROGRAMS, TEST_TIMEOUT_S, command, python, require_tool

#: Timeout in seconds of a recording that takes two CPU seconds on an idle machine.
RUN_TIMEOUT_S = 300


@pytest.fixture
def recording_and_program(run, tmp_path):
    """A recording of a private copy of the kernel program, and the path of that copy."""
    program = tmp_path / "kernel.py"
    shutil.copyfile(PROGRAMS / "kernel.py", program)
    run(command(), "record", "-o", tmp_path / "one.data", "--", python(), program, "work", timeout=RUN_TIMEOUT_S)
    return tmp_path / "one.data", program


def test_a_source_is_known_by_its_hash(run, recording_and_program):
    recording, program = recording_and_program
    show_lines = lambda: run(command(), "lines", recording).stdout
    text = show_lines()
    assert "total += (i % 7) * 0.5" in text and "note: this file" not in text
    newer_mtime = recording.stat().st_mtime + 100
    os.utime(program, (newer_mtime, newer_mtime))
    assert "note: this file" not in show_lines(), "only touched"
    program.write_text("# one line more\n" + program.read_text())
    os.utime(program, (1, 1))
    changed = show_lines()
    assert "note: this file differs from the compiled text (by its hash)" in changed, "although it is older"
    assert str(program) in changed.split("note: this file")[0].splitlines()[-1], "said at the place"
    program.unlink()
    without_source = show_lines()
    assert "note: this file cannot be read" in without_source and "__main__.burn" in without_source


def test_all_of_one_file_is_that_file_alone(run, recording_and_program):
    recording, program = recording_and_program
    list_files = lambda *options: [
        line
        for line in run(command(), "lines", "--all", *options, recording).stdout.splitlines()
        if line.startswith("/")
    ]
    assert len(list_files()) > 1 and list_files("--file", program.name) == [str(program)] == list_files(
        "--function", "__main__.burn"
    )


def test_recordings_are_added_up(run, recording_and_program, tmp_path):
    first_recording, program = recording_and_program
    second_recording = tmp_path / "two.data"
    run(command(), "record", "-o", second_recording, "--", python(), program, "work", timeout=RUN_TIMEOUT_S)
    read_report = lambda *files: json.loads(run(command(), "lines", "--json", "-", *files).stdout)
    first, second, combined = (
        read_report(first_recording),
        read_report(second_recording),
        read_report(first_recording, second_recording),
    )
    assert combined["recordings"] == 2 and combined["samples"] == first["samples"] + second["samples"]
    assert len(combined["processes"]) == 2 and len(combined["hosts"]) == 1
    self_samples = lambda report: sum(row["self"] for file in report["files"] for row in file["lines"])
    assert self_samples(combined) == self_samples(first) + self_samples(second) > 0
    for report in (first, second, combined):
        outside = sum(row["samples"] for row in report["outside"])
        assert self_samples(report) + report["without_line"] + outside == report["samples"], (
            "every sample is self of one row"
        )
        assert sum(row["samples"] for row in report["threads"]) == report["samples"]
        assert sum(row["self"] for row in report["functions"]) == report["samples"]
    assert [row["name"] for row in combined["functions"]].count("__main__.burn") == 1, (
        "compilations of one function are one row"
    )
    text = run(command(), "lines", "--processes", "--hosts", first_recording, second_recording).stdout
    assert "2 recordings" in text and text.count("| python (process ") == 2
    page = tmp_path / "both.html"
    run(command(), "lines", "--html", page, first_recording, second_recording)
    assert page.stat().st_size > 10_000
    (tmp_path / "none.data").write_text("nothing")
    error_output = run(command(), "lines", first_recording, tmp_path / "none.data", status=2).stderr
    assert "none.data: not a perf.data" in error_output


def test_a_command_is_recorded_as_it_is_said(run, tmp_path):
    program = tmp_path / "pool.py"
    shutil.copyfile(PROGRAMS / "kernel.py", program)
    program.write_text("import os\nchild = os.fork()\n" + program.read_text() + "\nif child: os.waitpid(child, 0)\n")
    program_args = ["--", python(), program, "work"]

    def record_and_read(*options):
        run(command(), "lines", "--json", "out", *options, *program_args, timeout=RUN_TIMEOUT_S)
        return json.loads((tmp_path / "out").read_text())

    both = record_and_read("-s", "-r", "50")
    assert both["recordings"] == 2 and len(both["processes"]) == 2
    parent_recording = tmp_path / "jitlisten.perf.data"
    (child,) = [path for path in tmp_path.glob("jitlisten.perf.data.[0-9]*") if path.is_file()]
    reread = json.loads(run(command(), "lines", "--json", "-", parent_recording, child).stdout)
    assert reread["samples"] == both["samples"], "the recordings are kept"
    # Earlier recordings must not become part of the next report.
    assert (
        "page-faults" in record_and_read("-e", "page-faults")["event"]
        and record_and_read("-o", "%p.data")["recordings"] == 1
    )
    assert child.exists() and len(list(tmp_path.glob("[0-9]*.data"))) == 1
    pool = run(command(), "lines", "-s", "-o", "pool-%p.data", *program_args, timeout=RUN_TIMEOUT_S)
    assert "pool-*.data: jitlisten lines --open pool-*.data (page)" in pool.stdout
    assert "1..=10000" in run(command(), "lines", "-r", "0", *program_args, status=2).stderr
    assert "cannot be used with a recording" in run(command(), "lines", "-s", parent_recording, status=2).stderr
    assert "name a command" in run(command(), "lines", "-s", status=2).stderr


def test_a_program_is_recorded_by_this_python(run, tmp_path):
    """A script is run by this installation's Python, with or without ``--``, as a file, module, folder or archive. Each
    command prints the names of the files that it has written."""
    (tmp_path / "prog.py").write_text(
        "import sys, time\n"
        "print(sys.prefix, sys.argv[1:])\n"
        "until = time.process_time() + 0.5\n"
        "while time.process_time() < until: sum(range(1000))\n"
    )
    (tmp_path / "app").mkdir()
    shutil.copyfile(tmp_path / "prog.py", tmp_path / "app" / "__main__.py")
    zipapp.create_archive(tmp_path / "app", tmp_path / "app.pyz")
    expected_output = f"{python().parent.parent} ['-o', 'x']\n"
    for args in (["prog.py"], ["--", "prog.py"], ["-m", "prog"], ["--", "-m", "prog"], ["app"], ["app.pyz"]):
        result = run(command(), "lines", "--html", "page.html", *args, "-o", "x")
        assert result.stdout == expected_output
        assert (
            "wrote page.html" in result.stderr
            and "kept in jitlisten.perf.data: jitlisten lines --open" in result.stderr
        )
    for args in (["run"], ["record"], ["flamegraph", "-o", "a.svg"], ["export", "-o", "a.speedscope.json"]):
        assert run(command(), *args, "prog.py", "-o", "x").stdout == expected_output
    result = run(python(), "-m", "jitlisten", "record", "prog.py", "-o", "x")
    assert result.stdout == expected_output
    assert "speedscope" in (tmp_path / "a.speedscope.json").read_text() and (tmp_path / "a.svg").exists()
    assert "wrote a.svg" in run(command(), "flamegraph", "-o", "a.svg").stderr
    assert "no format is given" in run(command(), "export", "-o", "a.xyz", status=2).stderr


def test_recordings_in_a_folder_are_added_up(run, recording_and_program, tmp_path):
    recording, _program = recording_and_program
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("a.data", "b"):
        shutil.copyfile(recording, folder / name)
    (folder / "notes").write_text("not a recording")
    samples = [
        json.loads(run(command(), "lines", "--json", "-", source).stdout)["samples"] for source in (recording, folder)
    ]
    assert samples[1] == 2 * samples[0] > 0


def test_graphs_and_exports_add_up_what_they_are_given(run, recording_and_program, tmp_path):
    recording, program = recording_and_program
    read_weights = lambda *files: [
        int(line.rsplit(" ", 1)[1]) for line in run(command(), "export", "-f", "collapsed", *files).stdout.splitlines()
    ]
    other = shutil.copyfile(recording, tmp_path / "other.data")
    assert sum(read_weights(recording, other, recording)) == 2 * sum(read_weights(recording)) > 0
    run(command(), "flamegraph", "-o", tmp_path / "both.svg", recording, other)
    assert "2 recordings" in (tmp_path / "both.svg").read_text()


def user_cpu_seconds(pid):
    """User CPU time of a process in seconds; see proc(5)."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def run_until_busy(environment, directory, *args):
    """Runs the endless kernel under a jitlisten command; yields once it has executed compiled code for a second."""
    jitlisten_process = subprocess.Popen(
        [command(), *args, "--", python(), PROGRAMS / "kernel.py"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=directory,
    )
    try:
        pid = int(jitlisten_process.stdout.readline().split()[1])
        assert jitlisten_process.stdout.readline() == "ready\n"
        target_seconds = user_cpu_seconds(pid) + 1
        while user_cpu_seconds(pid) < target_seconds:
            time.sleep(0.05)
        yield jitlisten_process
    finally:
        # The process group includes the recorded program.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(jitlisten_process.pid, signal.SIGKILL)
        jitlisten_process.communicate()


@pytest.mark.parametrize(
    "send_signal, sent_signal",
    [(os.killpg, signal.SIGINT), (os.kill, signal.SIGTERM), (os.killpg, signal.SIGTERM), (os.kill, signal.SIGHUP)],
)
def test_an_interrupted_command_is_reported(environment, tmp_path, send_signal, sent_signal):
    """Ctrl-C signals the whole process group; ``kill``, ``docker stop`` and batch systems signal one process."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with run_until_busy({**environment, "TMPDIR": str(scratch)}, tmp_path, "lines") as lines:
        send_signal(lines.pid, sent_signal)
        report, errors = lines.communicate(timeout=TEST_TIMEOUT_S)
    assert " · task-clock" in report and "__main__.burn" in report, errors
    assert lines.returncode == 128 + sent_signal and not list(scratch.iterdir())


@pytest.mark.parametrize("args", [["lines"], ["why", "compiled.py:22"], ["record", "--bundle", "-o", "folder"]])
def test_ctrl_c_ends_a_program_in_compiled_code(environment, tmp_path, args):
    """The first Ctrl-C goes to the program, which does not notice it. The command then explains that a second one ends
    the program."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        args = [str(arg) for arg in [command(), *args, "--", python(), PROGRAMS / "compiled.py"]]
        os.execve(args[0], args, environment)
    output = b""

    def read_until(text):
        nonlocal output
        while text not in output:
            output += os.read(terminal, 65536)

    try:
        read_until(b"ready")
        time.sleep(1.5)
        os.write(terminal, b"\x03")
        read_until(b"the program goes on; press Ctrl-C again to end it")
        os.write(terminal, b"\x03")
        read_until(b"the program was ended by signal 15" if args[0] != "record" else b"folder: ")
        with contextlib.suppress(OSError):
            read_until(b"nothing says this")
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGTERM, output
    assert args[0] == "record" or b"total += (i % 7) * 0.5" in output, output


def test_an_interrupt_that_is_ignored_stays_so(environment, tmp_path):
    """A script's background job starts with signals ignored."""
    shell_args = ["sh", "-c", 'trap "" INT HUP; exec "$@"', "sh"]
    lines_args = [command(), "lines", "--", python(), PROGRAMS / "kernel.py", "work"]
    jitlisten_process = subprocess.Popen(
        [str(arg) for arg in [*shell_args, *lines_args]],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert jitlisten_process.stdout.readline().startswith("pid")
    for _ in range(3):
        os.killpg(jitlisten_process.pid, signal.SIGINT)
        os.killpg(jitlisten_process.pid, signal.SIGHUP)
        time.sleep(0.1)
    report, errors = jitlisten_process.communicate(timeout=TEST_TIMEOUT_S)
    assert jitlisten_process.returncode == 0 and "__main__.burn" in report and "goes on" not in errors, errors


def test_a_bundle_is_filled_when_its_command_is_ended(environment, run, tmp_path):
    with run_until_busy(environment, tmp_path, "record", "--bundle", "-o", tmp_path / "folder") as record:
        os.kill(record.pid, signal.SIGTERM)
        _, errors = record.communicate(timeout=TEST_TIMEOUT_S)
    assert record.returncode == 128 + signal.SIGTERM and "folder: " in errors, errors
    report = json.loads(run(command(), "lines", "--json", "-", tmp_path / "folder").stdout)
    assert report["compiled"] > 0


#: Numba generates branches of its own for these functions. `spin` runs each for the same time.
BRANCHES = """
import time
import numpy as np
from numba import literal_unroll, njit

indices, values = np.random.randint(0, 4, 2000), np.random.rand(2000)

@njit
def variable(items, indices):
    total = 0.0
    for i in range(indices.size):
        total += items[indices[i]]  # variable
    return total

@njit
def unrolled(items, values):
    total = 0.0
    for i in range(values.size):
        for item in literal_unroll(items):
            total += item.real * values[i]  # unrolled
    return total

@njit
def zipped(items, others, values):
    total = 0.0
    for i in range(values.size):
        for item, (k, other) in zip(items, enumerate(others)):
            total += item * other * values[i]  # zipped
    return total

@njit
def raising(values, step):
    total = 0.0
    for i in range(0, values.size, step):
        if values[i] < 0:
            raise ValueError("negative")
        total += values[i]  # raising
    return total

def spin(function, *arguments):
    function(*arguments)
    end = time.thread_time() + 0.5
    while time.thread_time() < end:
        function(*arguments)

items = (1.0, 2.0, 3.0, 4.0)
spin(variable, items, indices)
spin(unrolled, (1, 2.5, 3.0, 4 + 0j), values)
spin(zipped, items, items, values)
spin(raising, values, 1)
"""


def test_branches_of_numba_have_the_line_of_their_expression(run, tmp_path):
    program = tmp_path / "prog.py"
    program.write_text(BRANCHES)
    run(command(), "record", "-r", "499", "--", python(), program)
    report = json.loads(run(command(), "lines", "--json", "-").stdout)
    # LLVM gives no line to the copies in the cases of a `switch`.
    assert report["line_zero"] < 0.03 * report["compiled"], report["line_zero"]
    lines = next(file for file in report["files"] if file["path"] == str(program))["lines"]
    samples = {row["line"]: row["self"] for row in lines}
    number = next(number for number, line in enumerate(BRANCHES.splitlines(), 1) if line.endswith("# variable"))
    assert samples[number] > 9 * (samples.get(number - 1, 0) + samples.get(number - 3, 0)), samples
    assert "loop " in run(command(), "why", f"prog.py:{number}").stdout


#: Spends its time in a C function that keeps no frame pointer in most distributions.
CALLING = """
import math
from numba import njit

@njit
def cosines(n):
    total = 0.0
    for i in range(n):
        total += math.cos(i * 0.1)
    return total

cosines(60_000_000)
"""


def test_frame_pointers_of_perf_skip_no_caller(run, tmp_path):
    perf = require_tool("perf")
    (tmp_path / "prog.py").write_text(CALLING)
    record = [perf, "record", "-q", "-g", "-F", "499", "-e", "cpu-clock:u", "-o", "perf.data"]
    if run(*record, "true", status=None).returncode:
        pytest.skip("perf may not record here")
    run(*record, command(), "run", "--", python(), "prog.py")
    report = json.loads(run(command(), "lines", "--json", "-", "perf.data").stdout)
    hot = {row["line"]: row["self_percent"] for row in report["hottest"] if row["path"] == str(tmp_path / "prog.py")}
    note = next((note for note in report["notes"] if "without a frame pointer" in note), None)
    assert hot.get(6, 0) < 1, (hot, note)
    # The call has a line only if libm keeps frame pointers.
    cosines = next(row for row in report["functions"] if row["name"] == "__main__.cosines")
    assert cosines["total_percent"] > 10 and (note is not None or hot[9] > 10), (cosines, hot, note)


PHASES = """
import math
import time

import numpy as np
from numba import njit

@njit
def cosines(n):
    total = 0.0
    for i in range(n):
        total += np.cos(i * 0.1)
    return total

@njit
def exponentials(n):
    total = 0.0
    for i in range(n):
        total += np.exp(i * -1e-9)
    return total

@njit
def powers(n):
    total = 0.0
    for i in range(n):
        total += math.pow(i + 1.5, 0.3)
    return total

for function in cosines, exponentials, powers:
    function(10)
    start = time.process_time()
    while time.process_time() < start + 0.7:
        function(500_000)
    print(function.__name__, time.process_time() - start)
"""


def test_c_functions_that_compiled_code_calls_have_names(run, tmp_path):
    """libm has these names only for functions that choose another by the processor."""
    (tmp_path / "prog.py").write_text(PHASES)
    printed = run(command(), "record", "-o", "f.data", "--", python(), "prog.py").stdout
    phases = {name: float(seconds) for name, seconds in map(str.split, printed.splitlines())}
    report = json.loads(run(command(), "lines", "--json", "-", "f.data").stdout)
    seconds = {row["name"]: row["total_percent"] * report["weight"] / 1e11 for row in report["functions"]}
    for phase, name in ("cosines", "cos"), ("exponentials", "exp"), ("powers", "pow"):
        # The loop takes the rest of its phase. 140 samples have a standard deviation of 9 %.
        assert 0.25 < seconds[name] / phases[phase] < 1.4, (name, seconds[name], phases)
        assert seconds[name] <= seconds[f"__main__.{phase}"], (name, seconds)
    stacks = run(command(), "export", "-f", "collapsed", "f.data").stdout
    assert all(f";{name}" in stacks for name in ("cos", "exp", "pow")), stacks


LIBRARY = """
static double __attribute__((noinline)) inner(long n) {
    double sum = 0;
    for (volatile long i = 0; i < n; i++) sum += i;
    return sum;
}
double __attribute__((visibility("default"))) outer(long n) { return inner(n) + 1; }
"""

LIBRARY_CALLER = """
import ctypes
import numba

outer = ctypes.CDLL("./libwork.so").outer
outer.argtypes, outer.restype = [ctypes.c_long], ctypes.c_double


@numba.njit
def call(n):
    return outer(n)


call(600_000_000)
"""


@pytest.fixture
def library(run, tmp_path):
    """``libwork.so``, with ``inner`` in no dynamic symbol table. Returns its build id, and a function that records it
    and returns the percentages of functions and the files of its report."""
    (tmp_path / "work.c").write_text(LIBRARY)
    run("cc", "-O1", "-g", "-fPIC", "-shared", "-Wl,--build-id", "-o", "libwork.so", "work.c")
    build_id = run("readelf", "-n", "libwork.so").stdout.split("Build ID:")[1].split()[0]

    def functions(*options, recording="f.data"):
        if not (tmp_path / "f.data").exists():
            (tmp_path / "caller.py").write_text(LIBRARY_CALLER)
            run(command(), "record", "-o", "f.data", "--", python(), "caller.py")
        report = json.loads(run(command(), "lines", *options, "--json", "-", recording).stdout)
        files = {file["path"].split("/")[-1]: file for file in report["files"]}
        return {row["name"]: row["self_percent"] for row in report["functions"]}, files

    return build_id, functions


@pytest.mark.parametrize("place", ["build id", "debuglink"])
def test_debug_information_in_a_file_of_its_own_is_read(run, tmp_path, library, place):
    """As in packages whose debug information is a package of its own."""
    build_id, functions = library
    objcopy = require_tool("objcopy")
    if place == "build id":
        debug = tmp_path / "root/usr/lib/debug/.build-id" / build_id[:2] / f"{build_id[2:]}.debug"
    else:
        debug = tmp_path / ".debug" / "libwork.so.debug"
    debug.parent.mkdir(parents=True)
    run(objcopy, "--only-keep-debug", "libwork.so", debug)
    run(objcopy, "--strip-all", f"--add-gnu-debuglink={debug}", "libwork.so")
    names, files = functions("--native", "--root", tmp_path / "root")
    assert names["inner"] > 30, names
    percents = {row["line"]: row["self_percent"] for row in files["work.c"]["lines"]}
    assert percents[4] > 30, percents
    run(command(), "bundle", "--whole", "--root", tmp_path / "root", "-o", "whole", "f.data")
    debug.unlink()
    (tmp_path / "libwork.so").rename(tmp_path / "moved.so")
    bundled_names, files = functions("--native", recording="whole")
    assert bundled_names == names
    assert {row["line"]: row["self_percent"] for row in files["work.c"]["lines"]} == percents
    (tmp_path / "moved.so").rename(tmp_path / "libwork.so")
    assert "inner" not in functions("--root", tmp_path / "root")[0]


def test_symbols_in_gnu_debugdata_are_read(run, tmp_path, library):
    """As in Fedora's libraries."""
    objcopy = require_tool("objcopy")
    run(objcopy, "--only-keep-debug", "--strip-debug", "libwork.so", "symbols")
    run(objcopy, "--strip-all", "libwork.so")
    (tmp_path / "symbols.xz").write_bytes(lzma.compress((tmp_path / "symbols").read_bytes()))
    run(objcopy, "--add-section", ".gnu_debugdata=symbols.xz", "libwork.so")
    names, _ = library[1]()
    assert names["inner"] > 30, names
    (tmp_path / "symbols.xz").write_bytes(b"\xfd7zXZ\0damaged")
    run(objcopy, "--update-section", ".gnu_debugdata=symbols.xz", "libwork.so")
    assert "inner" not in library[1]()[0]
