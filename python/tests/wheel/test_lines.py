"""`jitlisten lines` of recordings that the installed command makes: several added up, and sources that were changed."""

import contextlib
import json
import os
import pathlib
import pty
import shutil
import signal
import subprocess
import time

import pytest
from conftest import PATIENCE, PROGRAMS, command, python


#: Two seconds of a processor, which may be shared.
PATIENT = 300


@pytest.fixture
def recorded(run, tmp_path):
    """A recording of a program of this test's own, and its source."""
    program = tmp_path / "kernel.py"
    shutil.copyfile(PROGRAMS / "kernel.py", program)
    run(command(), "record", "-o", tmp_path / "one.data", "--", python(), program, "work", timeout=PATIENT)
    return tmp_path / "one.data", program


def test_a_source_is_known_by_its_hash(run, recorded):
    recording, program = recorded
    lines = lambda: run(command(), "lines", recording).stdout
    text = lines()
    assert "total += (i % 7) * 0.5" in text and "note: this file" not in text
    later = recording.stat().st_mtime + 100
    os.utime(program, (later, later))
    assert "note: this file" not in lines(), "only touched"
    program.write_text("# one line more\n" + program.read_text())
    os.utime(program, (1, 1))
    changed = lines()
    assert "note: this file differs from the compiled text (by its hash)" in changed, "although it is older"
    assert str(program) in changed.split("note: this file")[0].splitlines()[-1], "said at the place"
    program.unlink()
    gone = lines()
    assert "note: this file cannot be read" in gone and "__main__.burn" in gone


def test_all_of_one_file_is_that_file_alone(run, recorded):
    recording, program = recorded
    files = lambda *options: [
        line
        for line in run(command(), "lines", "--all", *options, recording).stdout.splitlines()
        if line.startswith("/")
    ]
    assert len(files()) > 1 and files("--file", program.name) == [str(program)] == files("--function", "__main__.burn")


def test_recordings_are_added_up(run, recorded, tmp_path):
    one, program = recorded
    two = tmp_path / "two.data"
    run(command(), "record", "-o", two, "--", python(), program, "work", timeout=PATIENT)
    read = lambda *files: json.loads(run(command(), "lines", "--json", "-", *files).stdout)
    first, second, both = read(one), read(two), read(one, two)
    assert both["recordings"] == 2 and both["samples"] == first["samples"] + second["samples"]
    assert len(both["processes"]) == 2 and len(both["hosts"]) == 1
    line = lambda found: sum(row["self"] for file in found["files"] for row in file["lines"])
    assert line(both) == line(first) + line(second) > 0
    for found in (first, second, both):
        outside = sum(row["samples"] for row in found["outside"])
        assert line(found) + found["without_line"] + outside == found["samples"], "every sample is self of one row"
        assert sum(row["samples"] for row in found["threads"]) == found["samples"]
        assert sum(row["self"] for row in found["functions"]) == found["samples"]
    assert [row["name"] for row in both["functions"]].count(
        "__main__.burn"
    ) == 1, "compilations of one function are one row"
    text = run(command(), "lines", "--processes", "--hosts", one, two).stdout
    assert "2 recordings" in text and text.count("| python (process ") == 2
    page = tmp_path / "both.html"
    run(command(), "lines", "--html", page, one, two)
    assert page.stat().st_size > 10_000
    (tmp_path / "none.data").write_text("nothing")
    refused = run(command(), "lines", one, tmp_path / "none.data", status=2).stderr
    assert "none.data: not a perf.data" in refused


def test_a_command_is_recorded_as_it_is_said(run, tmp_path):
    program = tmp_path / "pool.py"
    shutil.copyfile(PROGRAMS / "kernel.py", program)
    program.write_text("import os\nchild = os.fork()\n" + program.read_text() + "\nif child: os.waitpid(child, 0)\n")
    work = ["--", python(), program, "work"]

    def read(*options):
        run(command(), "lines", "--json", "out", *options, *work, timeout=PATIENT)
        return json.loads((tmp_path / "out").read_text())

    both = read("-s", "-r", "50")
    assert both["recordings"] == 2 and len(both["processes"]) == 2
    kept = tmp_path / "jitlisten.perf.data"
    (child,) = [path for path in tmp_path.glob("jitlisten.perf.data.[0-9]*") if path.is_file()]
    again = json.loads(run(command(), "lines", "--json", "-", kept, child).stdout)
    assert again["samples"] == both["samples"], "the recordings are kept"
    # A recording from before is no part of the next one.
    assert "page-faults" in read("-e", "page-faults")["event"] and read("-o", "%p.data")["recordings"] == 1
    assert child.exists() and len(list(tmp_path.glob("[0-9]*.data"))) == 1
    assert "1..=10000" in run(command(), "lines", "-r", "0", *work, status=2).stderr
    assert "cannot be used with a recording" in run(command(), "lines", "-s", kept, status=2).stderr
    assert "name a command" in run(command(), "lines", "-s", status=2).stderr


def test_a_program_is_recorded_by_this_python(run, tmp_path):
    """With and without ``--``, as a file and as a module; each command says what it wrote."""
    (tmp_path / "prog.py").write_text(
        "import sys, time\n"
        "print(sys.prefix, sys.argv[1:])\n"
        "until = time.process_time() + 0.5\n"
        "while time.process_time() < until: sum(range(1000))\n"
    )
    said = f"{python().parent.parent} ['-o', 'x']\n"
    for words in (["prog.py"], ["--", "prog.py"], ["-m", "prog"], ["--", "-m", "prog"]):
        done = run(command(), "lines", "--html", "page.html", *words, "-o", "x")
        assert done.stdout == said
        assert "wrote page.html" in done.stderr and "kept in jitlisten.perf.data: jitlisten lines --html" in done.stderr
    for words in (["run"], ["record"], ["flamegraph", "-o", "a.svg"], ["export", "-o", "a.speedscope.json"]):
        assert run(command(), *words, "prog.py", "-o", "x").stdout == said
    done = run(python(), "-m", "jitlisten", "record", "prog.py", "-o", "x")
    assert done.stdout == said
    assert "speedscope" in (tmp_path / "a.speedscope.json").read_text() and (tmp_path / "a.svg").exists()
    assert "wrote a.svg" in run(command(), "flamegraph", "-o", "a.svg").stderr
    assert "no format is given" in run(command(), "export", "-o", "a.xyz", status=2).stderr


def test_recordings_in_a_folder_are_added_up(run, recorded, tmp_path):
    one, _program = recorded
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("a.data", "b"):
        shutil.copyfile(one, folder / name)
    (folder / "notes").write_text("not a recording")
    samples = [json.loads(run(command(), "lines", "--json", "-", place).stdout)["samples"] for place in (one, folder)]
    assert samples[1] == 2 * samples[0] > 0


def test_graphs_and_exports_add_up_what_they_are_given(run, recorded, tmp_path):
    one, program = recorded
    weights = lambda *files: [
        int(line.rsplit(" ", 1)[1]) for line in run(command(), "export", "-f", "collapsed", *files).stdout.splitlines()
    ]
    assert sum(weights(one, one)) == 2 * sum(weights(one)) > 0
    run(command(), "flamegraph", "-o", tmp_path / "both.svg", one, one)
    assert "2 recordings" in (tmp_path / "both.svg").read_text()


def processor_time(pid):
    """Seconds of user time, by proc(5)."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def at_work(environment, directory, *words):
    """A command of jitlisten that runs the endless kernel, once that has been in compiled code alone for a second."""
    started = subprocess.Popen(
        [command(), *words, "--", python(), PROGRAMS / "kernel.py"], env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=directory,
    )
    try:
        pid = int(started.stdout.readline().split()[1])
        assert started.stdout.readline() == "ready\n"
        enough = processor_time(pid) + 1
        while processor_time(pid) < enough:
            time.sleep(0.05)
        yield started
    finally:
        # The program that was started is in the group, too.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.communicate()


@pytest.mark.parametrize(
    "send, sent",
    [(os.killpg, signal.SIGINT), (os.kill, signal.SIGTERM), (os.killpg, signal.SIGTERM), (os.kill, signal.SIGHUP)],
)
def test_an_interrupted_command_is_reported(environment, tmp_path, send, sent):
    """Ctrl-C is for all processes of the terminal; ``kill``, ``docker stop`` and a batch system mean one."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with at_work({**environment, "TMPDIR": str(scratch)}, tmp_path, "lines") as lines:
        send(lines.pid, sent)
        text, said = lines.communicate(timeout=PATIENCE)
    assert "samples of task-clock" in text and "__main__.burn" in text, said
    assert lines.returncode == 128 + sent and not list(scratch.iterdir())


@pytest.mark.parametrize("words", [["lines"], ["why", "compiled.py:23"], ["record", "--bundle", "-o", "folder"]])
def test_ctrl_c_ends_a_program_in_compiled_code(environment, tmp_path, words):
    """The first one is the program's, which does not notice it; the second one, after some advice, ends it."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        words = [str(word) for word in [command(), *words, "--", python(), PROGRAMS / "compiled.py"]]
        os.execve(words[0], words, environment)
    said = b""

    def says(text):
        nonlocal said
        while text not in said:
            said += os.read(terminal, 65536)

    try:
        says(b"ready")
        time.sleep(1.5)
        os.write(terminal, b"\x03")
        says(b"the program goes on; press Ctrl-C again to end it")
        os.write(terminal, b"\x03")
        says(b"the program was ended by signal 15" if words[0] != "record" else b"folder: ")
        with contextlib.suppress(OSError):
            says(b"nothing says this")
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGTERM, said
    assert words[0] == "record" or b"total += (i % 7) * 0.5" in said, said


def test_an_interrupt_that_is_ignored_stays_so(environment, tmp_path):
    """As of a job in the background of a script."""
    words = ["sh", "-c", 'trap "" INT HUP; exec "$@"', "sh"]
    program = [command(), "lines", "--", python(), PROGRAMS / "kernel.py", "work"]
    started = subprocess.Popen(
        [str(word) for word in [*words, *program]], env=environment, cwd=tmp_path, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )
    assert started.stdout.readline().startswith("pid")
    for _ in range(3):
        os.killpg(started.pid, signal.SIGINT)
        os.killpg(started.pid, signal.SIGHUP)
        time.sleep(0.1)
    text, said = started.communicate(timeout=PATIENCE)
    assert started.returncode == 0 and "__main__.burn" in text and "goes on" not in said, said


def test_a_bundle_is_filled_when_its_command_is_ended(environment, run, tmp_path):
    with at_work(environment, tmp_path, "record", "--bundle", "-o", tmp_path / "folder") as record:
        os.kill(record.pid, signal.SIGTERM)
        _, said = record.communicate(timeout=PATIENCE)
    assert record.returncode == 128 + signal.SIGTERM and "folder: " in said, said
    found = json.loads(run(command(), "lines", "--json", "-", tmp_path / "folder").stdout)
    assert found["compiled"] > 0
