"""All commands, run by an ordinary user without capabilities, who may access only that user's own processes and
files."""

import json
import pathlib

import pytest
from conftest import command, perf_map, python, require_tool, wait_for
from spaces import USER, User


@pytest.fixture
def user():
    created = User()
    yield created
    created.close()


@pytest.fixture
def run_as_user(user, run):
    def run_as_user(*args, **variables):
        return run(*user.command_prefix, *args, **{**user.environment, **variables})

    return run_as_user


def effective_capabilities(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return next(line for line in status.splitlines() if line.startswith("CapEff")).split()[1]


def test_run(user, run_as_user):
    output = run_as_user(command(), "run", "--", python(), user.program("kernel.py"), "once").stdout
    pid = output.split()[1]
    assert "__main__.burn" in perf_map(pid)
    assert pathlib.Path(f"/tmp/perf-{pid}.map").stat().st_uid == USER
    assert list(user.home.glob(f"image-{pid}-*/object-*.so"))


def test_run_before_perf(user, run_as_user):
    require_tool("perf")
    doctor = json.loads(run_as_user(command(), "doctor", "--json").stdout)
    state = next(finding for finding in doctor["machine"] if finding["about"] == "perf")["state"]
    args = [
        "perf",
        "record",
        "-q",
        "-e",
        "cpu-clock:u",
        "-g",
        "-o",
        "perf.data",
        "--",
        python(),
        user.program("kernel.py"),
        "work",
    ]
    result = run_as_user(command(), "run", "--", *args, status=None)
    # Recording with perf works if and only if doctor reports that it does.
    assert (result.returncode == 0) == (state != "no"), result.stderr
    if state != "no":
        script = run_as_user("perf", "script", "-i", "perf.data", "--no-inline", "-F", "ip,sym,dso").stdout
        assert "burn" in script


def test_attach_and_detach(user, run_as_user, start):
    program = start(*user.command_prefix, python(), user.program("kernel.py"), **user.environment)
    assert effective_capabilities(program.pid) == "0" * 16
    result = run_as_user(command(), "attach", program.pid)
    assert "compiled functions" in result.stdout and "__main__.burn" in perf_map(program.pid)
    assert "sinks on: none" in run_as_user(command(), "detach", program.pid).stdout


def test_reading_only(user, run_as_user, start):
    program = start(*user.command_prefix, python(), user.program("kernel.py"), **user.environment)
    assert "reading only" in run_as_user(command(), "attach", "--no-inject", program.pid).stdout
    assert "__main__.burn" in perf_map(program.pid)


def test_doctor(user, run_as_user, start):
    program = start(
        *user.command_prefix, command(), "run", "--", python(), user.program("kernel.py"), **user.environment
    )
    report = json.loads(run_as_user(command(), "doctor", "--json", program.pid).stdout)
    assert any(finding["about"] == "library" and finding["state"] == "ok" for finding in report["program"])
    report = json.loads(run_as_user(command(), "doctor", "--json", "--", python(), user.program("kernel.py")).stdout)
    assert any(finding["about"] == "LLVM" for finding in report["program"])


def test_clean(user, run_as_user, start):
    for _ in range(3):
        pid = run_as_user(command(), "run", "--", python(), user.program("kernel.py"), "once").stdout.split()[1]
        # If another user has a perf map for the same PID, this process writes no map.
        if perf_map(pid) and pathlib.Path(f"/tmp/perf-{pid}.map").stat().st_uid == USER:
            break
    result = run_as_user(command(), "clean", "--dry-run", pid)
    assert "perf map" in result.stdout and "images" in result.stdout and "2 would be removed" in result.stdout
    run_as_user(command(), "clean", pid)
    assert not perf_map(pid) and not list(user.home.glob("image-*"))


def test_processes_of_others(user, run_as_user, start):
    program = start(python(), user.program("kernel.py"))
    maps_before = pathlib.Path(f"/proc/{program.pid}/maps").read_text()
    for verb in ["attach", "detach", "doctor"]:
        result = run_as_user(command(), verb, program.pid, status=2)
        assert result.stderr.endswith("belongs to user 0\n  help: run this as that user, or as root\n")
    result = run_as_user(command(), "record", "-o", "f.data", "-p", program.pid, status=2)
    assert "belongs to user 0" in result.stderr and not (user.home / "f.data").exists()
    # The rejected commands have left the process unchanged.
    assert pathlib.Path(f"/proc/{program.pid}/maps").read_text().count("libjitlisten") == 0
    assert len(maps_before) > 0


def test_root_attaches_to_a_process_of_the_user(user, run, start):
    program = start(*user.command_prefix, python(), user.program("kernel.py"), **user.environment)
    assert "compiled functions" in run(command(), "attach", program.pid).stdout
    assert pathlib.Path(f"/tmp/perf-{program.pid}.map").stat().st_uid == USER


def test_set_user_id(user, run_as_user):
    program = user.program("privileged")
    program.write_bytes(open("/bin/true", "rb").read())
    program.chmod(0o4755)
    result = run_as_user(command(), "run", "--", program, status=2)
    assert "set-user-ID" in result.stderr and result.stdout == ""


def test_no_place_to_write(user, run_as_user):
    result = run_as_user(command(), "record", "-o", "/f.data", "--", "true", status=2)
    assert result.stderr == "jitlisten: / cannot be written\n  help: choose another -o\n"
    result = run_as_user(command(), "run", "--", "true", JITLISTEN_DIR="/", status=2)
    assert "JITLISTEN_DIR, /, is not a directory that can be written" in result.stderr


def test_a_process_that_gained_privileges(user, run_as_user, start):
    """Tracing and reading such a process is refused with a message, and no files are left over."""
    program = start(*user.command_prefix, python(), "-c", NOT_DUMPABLE, **user.environment)
    result = run_as_user(command(), "attach", program.pid, status=2)
    assert "run this as that user, or as root" in result.stderr or "cannot be" in result.stderr
    wait_for(lambda: program.has_printed("ready"), "the program")


NOT_DUMPABLE = """
import ctypes, time
# PR_SET_DUMPABLE of <linux/prctl.h>, as for a program that was set-user-ID
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
print("ready", flush=True)
time.sleep(600)
"""
