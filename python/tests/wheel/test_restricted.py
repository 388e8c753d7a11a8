"""Recordings with minimal permissions: as an ordinary user without perf and ptrace, under a seccomp filter like
Docker's, on file systems that are read-only except for one directory."""

import json

import pytest
from conftest import command, python
from spaces import User

#: Remounts all file systems read-only, except the kernel's own.
REMOUNT_READ_ONLY = """
kernels='^(proc|sysfs|cgroup2?|devpts|mqueue|tracefs|debugfs|bpf)$'
for place in $(findmnt -rno TARGET,FSTYPE | awk -v kernels="$kernels" '$2 !~ kernels { print $1 }'); do
    mount -o remount,bind,ro "$place" 2>/dev/null || true
done
"""


@pytest.fixture
def restricted(run, request):
    """Yields a function that runs a command with these restrictions, and the writable directory."""
    user = User()
    try:
        home = user.home
        read_only_user = User(
            extra_commands=[f"mount --bind {home} {home}", REMOUNT_READ_ONLY, f"mount -o remount,bind,rw {home}"]
        )
    except BaseException:
        user.close()
        raise

    def run_restricted(*args, **variables):
        prefix = [*read_only_user.command_prefix, python(), user.program("restricted.py")]
        prefix[prefix.index(f"--wd={read_only_user.home}")] = f"--wd={home}"
        return run(*prefix, *args, **{**user.environment, **variables})

    yield run_restricted, home
    read_only_user.close()
    user.close()


CHECK_RESTRICTIONS = """
import ctypes, os, tempfile
libc = ctypes.CDLL(None, use_errno=True)
for number in (101, 298, 310, 425):
    assert libc.syscall(number, 0, 0, 0, 0, 0) == -1 and ctypes.get_errno() == 1, number
status = open("/proc/self/status").read()
for line in ("CapEff:\\t0000000000000000", "Seccomp:\\t2", "NoNewPrivs:\\t1"):
    assert line in status, line
for place in ("/tmp", "/var/tmp", "/dev/shm", "/run"):
    try:
        tempfile.TemporaryFile(dir=place)
    except OSError:
        continue
    raise AssertionError(place)
tempfile.TemporaryFile(dir=".")
print("so it is")
"""


def test_the_place_is_what_it_says(restricted):
    run_restricted, _ = restricted
    assert run_restricted(python(), "-c", CHECK_RESTRICTIONS).stdout == "so it is\n"


def test_it_records(restricted, run):
    run_restricted, home = restricted
    result = run_restricted(
        command(), "record", "-r", "499", "-o", "f.data", "--", python(), home / "kernel.py", "work", timeout=180
    )
    assert "ready" in result.stdout
    # The recording is read by an unrestricted process, which finds the images at the same path.
    run(command(), "lines", "--json", "lines.json", home / "f.data")
    report = json.loads(run("cat", "lines.json").stdout)
    lines = {
        line["line"]: line for file in report["files"] if file["path"].endswith("kernel.py") for line in file["lines"]
    }
    source = (home / "kernel.py").read_text().splitlines()
    loop_lines = [number for number, line in enumerate(source, 1) if "range(n)" in line or "total += (i % 7)" in line]
    # The loop takes 2 s of CPU time. Kernels count ticks, possibly only 100 per second, and fewer on a busy machine.
    assert sum(lines.get(number, {"self": 0})["self"] for number in loop_lines) > 0.9 * report["compiled"] > 20


def test_run(restricted):
    run_restricted, home = restricted
    result = run_restricted(command(), "run", "--", python(), home / "kernel.py", "once")
    # Because /tmp is read-only, the perf map is omitted with a message, but the images exist.
    assert "/tmp" in result.stderr and "no perf map" in result.stderr
    assert list(home.glob("image-*/object-*.so"))
    result = run_restricted(
        command(), "run", "--sinks", "perfmap", "--", python(), home / "kernel.py", "once", status=2
    )
    assert "/tmp, where perf maps go, cannot be written\n  help: use --sinks" in result.stderr


def test_doctor_says_so(restricted):
    run_restricted, home = restricted
    report = json.loads(run_restricted(command(), "doctor", "--json").stdout)
    machine = {finding["about"]: finding for finding in report["machine"]}
    assert "seccomp" in machine["ptrace"]["found"] and machine["ptrace"]["state"] == "no"
    assert machine["perf maps"]["state"] == "no" and machine["images"]["state"] == "ok"
    if "not installed" not in machine["perf"]["found"]:
        assert "seccomp" in machine["perf"]["found"]
    tools = {tool["tool"]: tool for tool in report["tools"]}
    assert tools["jitlisten record"]["names"] and not tools["perf record -g"]["names"]


def test_attach_says_what_is_refused(restricted):
    run_restricted, home = restricted
    program = (
        "import subprocess, sys, time\n"
        "one = subprocess.Popen([sys.executable, sys.argv[1]], stdout=subprocess.PIPE, text=True)\n"
        "while one.stdout.readline() != 'ready\\n': pass\n"
        "done = subprocess.run([sys.argv[2], 'attach', str(one.pid)], capture_output=True, text=True)\n"
        "print(done.returncode, done.stderr)\n"
        "one.kill()\n"
    )
    result = run_restricted(python(), "-c", program, home / "kernel.py", command())
    # Attaching cannot write its files, nor can reading from outside write the perf map.
    assert result.stdout.startswith("2 ") and "Read-only file system" in result.stdout
