"""Where next to nothing is allowed: an ordinary user, without perf and ptrace, under a seccomp filter as Docker's, and
a file system that is read-only but for one directory."""

import json

import pytest
from conftest import command, python
from spaces import User

#: Every file system that is not the kernel's own becomes read-only, and one directory of the user's is left.
READ_ONLY = """
kernels='^(proc|sysfs|cgroup2?|devpts|mqueue|tracefs|debugfs|bpf)$'
for place in $(findmnt -rno TARGET,FSTYPE | awk -v kernels="$kernels" '$2 !~ kernels { print $1 }'); do
    mount -o remount,bind,ro "$place" 2>/dev/null || true
done
"""


@pytest.fixture
def restricted(run, request):
    """Runs a command in such a place; returns the directory that is left, too."""
    user = User()
    try:
        home = user.home
        nest = User(extra=[f"mount --bind {home} {home}", READ_ONLY, f"mount -o remount,bind,rw {home}"])
    except BaseException:
        user.close()
        raise

    def restricted(*words, **keywords):
        before = [*nest.words, python(), user.program("restricted.py")]
        before[before.index(f"--wd={nest.home}")] = f"--wd={home}"
        return run(*before, *words, **{**user.environment, **keywords})

    yield restricted, home
    nest.close()
    user.close()


FORBIDDEN = """
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
    inside, _ = restricted
    assert inside(python(), "-c", FORBIDDEN).stdout == "so it is\n"


def test_it_records(restricted, run):
    inside, home = restricted
    done = inside(
        command(), "record", "-r", "499", "-o", "f.data", "--", python(), home / "kernel.py", "work", timeout=180
    )
    assert "ready" in done.stdout
    # Read outside, where the images are at the same path.
    run(command(), "lines", "--json", "lines.json", home / "f.data")
    report = json.loads(run("cat", "lines.json").stdout)
    lines = {
        line["line"]: line for file in report["files"] if file["path"].endswith("kernel.py") for line in file["lines"]
    }
    source = (home / "kernel.py").read_text().splitlines()
    loop = [number for number, line in enumerate(source, 1) if "range(n)" in line or "total += (i % 7)" in line]
    # 2 s of the processor's time in one loop; kernels count in ticks, of which there may be 100 in a second.
    assert sum(lines.get(number, {"self": 0})["self"] for number in loop) > 0.9 * report["compiled"] > 90


def test_run(restricted):
    inside, home = restricted
    done = inside(command(), "run", "--", python(), home / "kernel.py", "once")
    # /tmp is read-only: the perf map is left out, which is said, and the images are there.
    assert "/tmp" in done.stderr and "no perf map" in done.stderr
    assert list(home.glob("image-*/object-*.so"))
    done = inside(command(), "run", "--sinks", "perfmap", "--", python(), home / "kernel.py", "once", status=2)
    assert "/tmp, where perf maps go, cannot be written\n  help: use --sinks" in done.stderr


def test_doctor_says_so(restricted):
    inside, home = restricted
    found = json.loads(inside(command(), "doctor", "--json").stdout)
    machine = {finding["about"]: finding for finding in found["machine"]}
    assert "seccomp" in machine["ptrace"]["found"] and machine["ptrace"]["state"] == "no"
    assert machine["perf maps"]["state"] == "no" and machine["images"]["state"] == "ok"
    if "not installed" not in machine["perf"]["found"]:
        assert "seccomp" in machine["perf"]["found"]
    tools = {tool["tool"]: tool for tool in found["tools"]}
    assert tools["jitlisten record"]["names"] and not tools["perf record -g"]["names"]


def test_attach_says_what_is_refused(restricted):
    inside, home = restricted
    program = "import subprocess, sys, time\n" \
        "one = subprocess.Popen([sys.executable, sys.argv[1]], stdout=subprocess.PIPE, text=True)\n" \
        "while one.stdout.readline() != 'ready\\n': pass\n" \
        "done = subprocess.run([sys.argv[2], 'attach', str(one.pid)], capture_output=True, text=True)\n" \
        "print(done.returncode, done.stderr)\n" \
        "one.kill()\n"
    done = inside(python(), "-c", program, home / "kernel.py", command())
    # No place for what would have to be written, and no reading either: there is none for the map.
    assert done.stdout.startswith("2 ") and "Read-only file system" in done.stdout
