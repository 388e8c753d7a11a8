"""Other users and containers: what a test runs its programs in. All of it needs root."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest
from conftest import PROGRAMS, command, python, wait_for

ROOT = pathlib.Path(__file__).resolve().parents[3]
#: `nobody` of Debian: any user that is not root.
USER = 65534


def need_root():
    if os.geteuid() != 0:
        if os.environ.get("CI"):
            pytest.fail("CI must run this as root")
        pytest.skip("needs root to become another user")


def package():
    """The directory of the installed package."""
    ask = "import jitlisten, os; print(os.path.dirname(jitlisten.__file__))"
    return pathlib.Path(subprocess.check_output([str(python()), "-c", ask], text=True, cwd="/").strip())


def _pythons():
    """Every directory that the installed Python reads."""
    ask = "import sys, os; print(sys.prefix, sys.base_prefix, *(p for p in sys.path if os.path.isdir(p)), sep='\\n')"
    return subprocess.check_output([str(python()), "-c", ask], text=True, cwd="/").split("\n")[:-1]


def _uncover():
    """Lines of a shell that let every user get at the installed Python, although a home directory above it is closed:
    that directory is covered, and what is needed of it is mounted again. In a mount namespace of its own."""
    lines, covered = ["mount --make-rprivate /"], {}
    for place in dict.fromkeys(_pythons()):
        above = [parent for parent in reversed(pathlib.Path(place).parents) if parent.stat().st_mode & 0o001 == 0]
        if above:
            covered.setdefault(above[0], []).append(place)
    for number, (closed, places) in enumerate(covered.items()):
        hold = f"/mnt/{number}"
        lines += [f"mkdir -p {hold}", f"mount --bind {closed} {hold}", f"mount -t tmpfs -o mode=755 tmpfs {closed}"]
        for place in places:
            inside = pathlib.Path(place).relative_to(closed)
            lines += [f"mkdir -p {place}", f"mount --bind {hold}/{inside} {place}"]
    if covered:
        lines.insert(1, "mount -t tmpfs tmpfs /mnt")
    return lines


def _own_tmp():
    """Lines of a shell that give a container its own /tmp, and the repository its place back where that covers it: a
    clone below /tmp."""
    return [
        f"exec 9<'{ROOT}'",
        "mount -t tmpfs -o mode=1777 tmpfs /tmp",
        (
            f"[ -e '{ROOT}/Cargo.toml' ] || {{ mkdir -p '{ROOT}'; mount --no-canonicalize --rbind /proc/self/fd/9"
            f" '{ROOT}'; }}"
        ),
        "exec 9<&-",
    ]


class User:
    """An ordinary user, with a directory of its own, in a mount namespace where it can read the installed Python."""

    def __init__(self, extra=()):
        need_root()
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="jitlisten-user-"))
        for program in PROGRAMS.glob("*.py"):
            shutil.copy(program, self.home)
        for place in [self.home, *self.home.iterdir()]:
            os.chown(place, USER, USER)
        script = "\n".join(["set -e", *_uncover(), *extra, "echo ready", "exec sleep infinity"])
        self.holder = subprocess.Popen(["unshare", "--mount", "sh", "-c", script], stdout=subprocess.PIPE, text=True)
        assert self.holder.stdout.readline() == "ready\n"
        self.words = [
            "nsenter", "--target", self.holder.pid, "--mount", f"--wd={self.home}", "setpriv", f"--reuid={USER}",
            f"--regid={USER}", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all",
        ]
        self.environment = {name: str(self.home) for name in ("HOME", "NUMBA_CACHE_DIR", "JITLISTEN_DIR", "TMPDIR")}

    def program(self, name):
        return self.home / name

    def close(self):
        self.holder.kill()
        self.holder.wait()
        self.holder.stdout.close()
        shutil.rmtree(self.home, ignore_errors=True)


class Container:
    """A Python in mount and PID namespaces of its own, and with a /tmp of its own; ``hidden`` directories are empty in
    it, and ``words`` stand before the command."""

    def __init__(self, start, hidden=(), lines=(), words="", program=("kernel.py",), run=False):
        need_root()
        mounts = [f"mount -t tmpfs tmpfs {place}" for place in hidden]
        script = "\n".join(["set -e", "mount --make-rprivate /", *_own_tmp(), *mounts, *lines, f'exec {words} "$@"'])
        inner = [python(), PROGRAMS / program[0], *program[1:]]
        if run:
            inner = [command(), "run", "--", *inner]
        self.outside = start(
            "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script, "sh", *inner
        )
        children = pathlib.Path(f"/proc/{self.outside.pid}/task/{self.outside.pid}/children")
        self.pid = int(wait_for(lambda: children.read_text().split(), "the process inside")[0])
        self.root = pathlib.Path(f"/proc/{self.pid}/root")

    def perf_map(self):
        path = self.root / "tmp/perf-1.map"
        return path.read_text() if path.exists() else ""


assert sys.version_info >= (3, 8)
