"""Files that a recording creates: their names for each kind of child process, their modes, and the effect on earlier
recordings."""

import json
import os

import pytest
from conftest import PROGRAMS, command, python

BUSY_PROGRAM = """
import time

def busy(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass

busy(0.2)
"""

KINDS = ["fork", "fork twice", "daemon", "exec", "fork and exec", "fork, 0", "forkserver, 0", "spawn, 0", "fork, 1"]


def read_report(run, recording, subcommand):
    run(command(), subcommand, "--json", f"{subcommand}.json", recording)
    return json.loads(run("cat", f"{subcommand}.json").stdout)


@pytest.mark.parametrize("pattern", ["prof-%p.data", "prof.data"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_child_has_its_recording_and_compilations(run, tmp_path, kind, pattern):
    result = run(command(), "record", "-s", "-r", "499", "-o", pattern, "--", python(), PROGRAMS / "families.py", kind)
    workers = [int(line.split()[1]) for line in result.stdout.splitlines() if line.startswith("worked ")]
    assert len(workers) == (3 if "," in kind else 1), result.stdout
    names = {path.name for path in tmp_path.iterdir() if path.name.startswith("prof")}
    for pid in set(workers):
        name = pattern.replace("%p", str(pid))
        if "%p" not in pattern and kind != "exec":
            name += f".{pid}"
        assert {name, name + ".images"} <= names, names
        functions = [row["function"] for row in read_report(run, name, "compiles")]
        assert any("kernel" in function for function in functions), (name, functions)
        compiled = read_report(run, name, "lines")["compiled"]
        assert compiled > 5, f"{name}: {compiled} samples in compiled code"
    # Each image directory belongs to a recording.
    assert {name[: -len(".images")] for name in names if name.endswith(".images")} <= names, names


def permissions(path):
    return path.lstat().st_mode & 0o777


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_recording_is_readable_by_its_user_alone(environment, run, tmp_path, umask):
    old_umask = os.umask(umask)
    try:
        run(command(), "record", "--", python(), PROGRAMS / "families.py", "work")
    finally:
        os.umask(old_umask)
    folder = tmp_path / "jitlisten.perf.data.images"
    assert (permissions(tmp_path / "jitlisten.perf.data"), permissions(folder)) == (0o600, 0o700)
    files = sorted(folder.iterdir())
    assert {path.name.split("-")[0] for path in files} == {"image", "python", "compilations.jsonl", "interpreter.json"}
    assert {permissions(path) for path in files} == {0o600}


def busy_lines(run, recording):
    report = read_report(run, recording, "lines")
    return {line["line"] for file in report["files"] if file["path"].endswith("busy.py") for line in file["lines"]}


def test_an_earlier_recording_gets_another_name(run, tmp_path):
    (tmp_path / "busy.py").write_text(BUSY_PROGRAM)
    record = [command(), "record", "-o", "f.data", "--"]
    run(*record, python(), PROGRAMS / "families.py", "work")
    run(*record, python(), "busy.py")
    names = {path.name for path in tmp_path.iterdir() if path.name.startswith("f.data")}
    assert names == {"f.data", "f.data.images", "f.data.old", "f.data.old.images"}
    # The earlier recording keeps its files of Python functions, compiled code and compilations.
    report = read_report(run, "f.data.old", "lines")
    assert report["compiled"] > 5 and any(file["path"].endswith("families.py") for file in report["files"])
    assert len(read_report(run, "f.data.old", "compiles")) > 0
    assert busy_lines(run, "f.data")
    # `lines` reads the new recording only.
    result = run(command(), "lines", "-o", "f.data", "--", python(), "busy.py")
    assert "busy.py" in result.stdout and "families.py" not in result.stdout
    assert busy_lines(run, "f.data.old")


@pytest.mark.parametrize("command_line", [["true"], ["no-such-thing-at-all"], ["env", "true"]], ids=" ".join)
def test_a_program_without_a_sample_replaces_nothing(run, tmp_path, command_line):
    (tmp_path / "busy.py").write_text(BUSY_PROGRAM)
    for _ in range(2):
        run(command(), "record", "-r", "499", "--", python(), "busy.py")

    def recording_contents():
        paths = [path for path in tmp_path.rglob("*") if "jitlisten.perf.data" in str(path) and path.is_file()]
        return {str(path): path.read_bytes() for path in paths}

    assert len(recording_contents()) >= 4
    # One sample per CPU second rarely hits such a short program.
    for _ in range(5):
        before = recording_contents()
        run(command(), "record", "-r", "1", "--", *command_line, status=None)
        run(command(), "lines", "-r", "1", "--", *command_line, status=None)
        if recording_contents() == before:
            return
        assert read_report(run, "jitlisten.perf.data", "lines")["samples"] > 0
    pytest.fail("five programs had samples")


@pytest.mark.parametrize("limit", [0, 1, 600, 5000])
def test_a_full_disk_loses_no_earlier_recording(environment, run, tmp_path, limit):
    (tmp_path / "busy.py").write_text(BUSY_PROGRAM)
    (tmp_path / "limited.py").write_text(
        "import resource, signal, os, sys\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
        "os.execvp(sys.argv[1], sys.argv[1:])\n"
    )
    run(command(), "record", "--", python(), "busy.py")
    earlier = (tmp_path / "jitlisten.perf.data").read_bytes()
    # Standard output is a pipe, so the size limit does not apply to it. Without PYTHONDONTWRITEBYTECODE, Python would
    # leave truncated .pyc files.
    args = [command(), "record", "--", python(), "-S", "busy.py"]
    run(python(), "limited.py", *args, PYTHONDONTWRITEBYTECODE=1)
    files = [path.read_bytes() for path in tmp_path.glob("jitlisten.perf.data*") if path.is_file()]
    assert earlier in files


def test_a_dangling_link_and_the_directory_of_another_program_are_refused(run, tmp_path):
    (tmp_path / "busy.py").write_text(BUSY_PROGRAM)
    os.symlink(tmp_path / "elsewhere", tmp_path / "f.data")
    result = run(command(), "record", "-o", "f.data", "--", python(), "busy.py", status=2)
    assert "f.data: it is a dangling link" in result.stderr and not (tmp_path / "elsewhere").exists()
    (tmp_path / "g.data.images").mkdir()
    (tmp_path / "g.data.images").chmod(0o777)
    result = run(command(), "record", "-o", "g.data", "--", python(), "busy.py", status=2)
    assert "g.data.images: other users may write to it" in result.stderr
    # The Python API raises the same error as the command, and the program continues.
    result = run(
        python(),
        "-c",
        "import jitlisten\ntry: jitlisten.start_recording('g.data')\nexcept jitlisten.Error as e: print(e)",
    )
    assert "g.data.images: other users may write to it" in result.stdout
    assert list((tmp_path / "g.data.images").iterdir()) == [] and not (tmp_path / "g.data").exists()
