"""Everything as an ordinary user, with no capability and no right but those over processes and files of its own."""

import json
import pathlib

import pytest
from conftest import command, need, perf_map, python, wait_for
from spaces import USER, User


@pytest.fixture
def user():
    one = User()
    yield one
    one.close()


@pytest.fixture
def as_user(user, run):
    def as_user(*words, **keywords):
        return run(*user.words, *words, **{**user.environment, **keywords})

    return as_user


def effective_capabilities(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return next(line for line in status.splitlines() if line.startswith("CapEff")).split()[1]


def test_run(user, as_user):
    said = as_user(command(), "run", "--", python(), user.program("kernel.py"), "once").stdout
    pid = said.split()[1]
    assert "__main__.burn" in perf_map(pid)
    assert pathlib.Path(f"/tmp/perf-{pid}.map").stat().st_uid == USER
    assert list(user.home.glob(f"image-{pid}-*/object-*.so"))


def test_run_before_perf(user, as_user):
    need("perf")
    doctor = json.loads(as_user(command(), "doctor", "--json").stdout)
    state = next(finding for finding in doctor["machine"] if finding["about"] == "perf")["state"]
    words = [
        "perf", "record", "-q", "-e", "cpu-clock:u", "-g", "-o", "perf.data", "--", python(), user.program("kernel.py"),
        "work",
    ]
    done = as_user(command(), "run", "--", *words, status=None)
    # What doctor says is what happens.
    assert (done.returncode == 0) == (state != "no"), done.stderr
    if state != "no":
        script = as_user("perf", "script", "-i", "perf.data", "--no-inline", "-F", "ip,sym,dso").stdout
        assert "burn" in script


def test_attach_and_detach(user, as_user, start):
    program = start(*user.words, python(), user.program("kernel.py"), **user.environment)
    assert effective_capabilities(program.pid) == "0" * 16
    done = as_user(command(), "attach", program.pid)
    assert "compiled functions" in done.stdout and "__main__.burn" in perf_map(program.pid)
    assert "sinks on: none" in as_user(command(), "detach", program.pid).stdout


def test_reading_only(user, as_user, start):
    program = start(*user.words, python(), user.program("kernel.py"), **user.environment)
    assert "reading only" in as_user(command(), "attach", "--no-inject", program.pid).stdout
    assert "__main__.burn" in perf_map(program.pid)


def test_doctor(user, as_user, start):
    program = start(*user.words, command(), "run", "--", python(), user.program("kernel.py"), **user.environment)
    found = json.loads(as_user(command(), "doctor", "--json", program.pid).stdout)
    assert any(finding["about"] == "library" and finding["state"] == "ok" for finding in found["program"])
    found = json.loads(as_user(command(), "doctor", "--json", "--", python(), user.program("kernel.py")).stdout)
    assert any(finding["about"] == "LLVM" for finding in found["program"])


def test_clean(user, as_user, start):
    for _ in range(3):
        pid = as_user(command(), "run", "--", python(), user.program("kernel.py"), "once").stdout.split()[1]
        # Another user's map of that number may have been there: then there is none of this process.
        if perf_map(pid) and pathlib.Path(f"/tmp/perf-{pid}.map").stat().st_uid == USER:
            break
    done = as_user(command(), "clean", "--dry-run", pid)
    assert "perf map" in done.stdout and "images" in done.stdout and "2 would be removed" in done.stdout
    as_user(command(), "clean", pid)
    assert not perf_map(pid) and not list(user.home.glob("image-*"))


def test_processes_of_others(user, as_user, start):
    program = start(python(), user.program("kernel.py"))
    before = pathlib.Path(f"/proc/{program.pid}/maps").read_text()
    for verb in ["attach", "detach", "doctor"]:
        done = as_user(command(), verb, program.pid, status=2)
        assert done.stderr.endswith("belongs to user 0\n  help: run this as that user, or as root\n")
    done = as_user(command(), "record", "-o", "f.data", "-p", program.pid, status=2)
    assert "belongs to user 0" in done.stderr and not (user.home / "f.data").exists()
    # Root, on the other hand, may attach to a process of the user.
    assert pathlib.Path(f"/proc/{program.pid}/maps").read_text().count("libjitlisten") == 0
    assert len(before) > 0


def test_root_attaches_to_a_process_of_the_user(user, run, start):
    program = start(*user.words, python(), user.program("kernel.py"), **user.environment)
    assert "compiled functions" in run(command(), "attach", program.pid).stdout
    assert pathlib.Path(f"/tmp/perf-{program.pid}.map").stat().st_uid == USER


def test_set_user_id(user, as_user):
    program = user.program("privileged")
    program.write_bytes(open("/bin/true", "rb").read())
    program.chmod(0o4755)
    done = as_user(command(), "run", "--", program, status=2)
    assert "set-user-ID" in done.stderr and done.stdout == ""


def test_no_place_to_write(user, as_user):
    done = as_user(command(), "record", "-o", "/f.data", "--", "true", status=2)
    assert done.stderr == "jitlisten: / cannot be written\n  help: choose another -o\n"
    done = as_user(command(), "run", "--", "true", JITLISTEN_DIR="/", status=2)
    assert "JITLISTEN_DIR, /, is not a directory that can be written" in done.stderr


def test_a_process_that_gained_privileges(user, as_user, start):
    """Neither tracing nor reading is allowed: the words say so, and nothing is left."""
    program = start(*user.words, python(), "-c", NOT_DUMPABLE, **user.environment)
    done = as_user(command(), "attach", program.pid, status=2)
    assert "run this as that user, or as root" in done.stderr or "cannot be" in done.stderr
    wait_for(lambda: program.has_said("ready"), "the program")


NOT_DUMPABLE = """
import ctypes, time
# PR_SET_DUMPABLE of <linux/prctl.h>, as for a program that was set-user-ID
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
print("ready", flush=True)
time.sleep(600)
"""
