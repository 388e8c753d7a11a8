"""Other users, and containers, in which tests run programs. Requires root."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest
from conftest import PROGRAMS, command, python, wait_for

ROOT = pathlib.Path(__file__).resolve().parents[3]
#: UID of Debian's `nobody`, as an example of a user other than root.
USER = 65534


def need_root():
    if os.geteuid() != 0:
        if os.environ.get("CI"):
            pytest.fail("CI must run this as root")
        pytest.skip("needs root to become another user")


def package_directory():
    """Directory of the installed package."""
    code = "import jitlisten, os; print(os.path.dirname(jitlisten.__file__))"
    return pathlib.Path(subprocess.check_output([str(python()), "-c", code], text=True, cwd="/").strip())


def _python_directories():
    """Directories from which the installed Python reads."""
    code = "import sys, os; print(sys.prefix, sys.base_prefix, *(p for p in sys.path if os.path.isdir(p)), sep='\\n')"
    return subprocess.check_output([str(python()), "-c", code], text=True, cwd="/").split("\n")[:-1]


def _expose_python_commands():
    """Shell commands that let every user read the installed Python, even if it is below a home directory that is closed
    to others. They mount a tmpfs over that directory and bind-mount the required directories into it. Run them in a
    private mount namespace."""
    commands, directories_by_closed_parent = ["mount --make-rprivate /"], {}
    for directory in dict.fromkeys(_python_directories()):
        closed_parents = [
            parent for parent in reversed(pathlib.Path(directory).parents) if parent.stat().st_mode & 0o001 == 0
        ]
        if closed_parents:
            directories_by_closed_parent.setdefault(closed_parents[0], []).append(directory)
    for number, (closed_parent, directories) in enumerate(directories_by_closed_parent.items()):
        original = f"/mnt/{number}"
        commands += [
            f"mkdir -p {original}",
            f"mount --bind {closed_parent} {original}",
            f"mount -t tmpfs -o mode=755 tmpfs {closed_parent}",
        ]
        for directory in directories:
            relative_path = pathlib.Path(directory).relative_to(closed_parent)
            commands += [f"mkdir -p {directory}", f"mount --bind {original}/{relative_path} {directory}"]
    if directories_by_closed_parent:
        commands.insert(1, "mount -t tmpfs tmpfs /mnt")
    return commands


def _private_tmp_commands():
    """Shell commands that give a container a private /tmp. If that hides the repository (a clone below /tmp), they
    mount the repository there again."""
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
    """An ordinary user with a home directory, in a mount namespace where that user can read the installed Python."""

    def __init__(self, extra_commands=()):
        need_root()
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="jitlisten-user-"))
        for program in PROGRAMS.glob("*.py"):
            shutil.copy(program, self.home)
        for path in [self.home, *self.home.iterdir()]:
            os.chown(path, USER, USER)
        script = "\n".join(["set -e", *_expose_python_commands(), *extra_commands, "echo ready", "exec sleep infinity"])
        self.namespace_holder = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", script], stdout=subprocess.PIPE, text=True
        )
        assert self.namespace_holder.stdout.readline() == "ready\n"
        self.command_prefix = [
            "nsenter",
            "--target",
            self.namespace_holder.pid,
            "--mount",
            f"--wd={self.home}",
            "setpriv",
            f"--reuid={USER}",
            f"--regid={USER}",
            "--clear-groups",
            "--inh-caps=-all",
            "--bounding-set=-all",
        ]
        self.environment = {name: str(self.home) for name in ("HOME", "NUMBA_CACHE_DIR", "JITLISTEN_DIR", "TMPDIR")}

    def program(self, name):
        return self.home / name

    def close(self):
        self.namespace_holder.kill()
        self.namespace_holder.wait()
        self.namespace_holder.stdout.close()
        shutil.rmtree(self.home, ignore_errors=True)


class Container:
    """A Python process in private mount and PID namespaces, with a private /tmp. ``hidden_directories`` are empty
    inside; ``command_prefix`` precedes the command."""

    def __init__(
        self,
        start,
        hidden_directories=(),
        mount_commands=(),
        command_prefix="",
        program=("kernel.py",),
        under_jitlisten=False,
    ):
        need_root()
        mounts = [f"mount -t tmpfs tmpfs {directory}" for directory in hidden_directories]
        script = "\n".join(
            [
                "set -e",
                "mount --make-rprivate /",
                *_private_tmp_commands(),
                *mounts,
                *mount_commands,
                f'exec {command_prefix} "$@"',
            ]
        )
        container_command = [python(), PROGRAMS / program[0], *program[1:]]
        if under_jitlisten:
            container_command = [command(), "run", "--", *container_command]
        self.launcher = start(
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            script,
            "sh",
            *container_command,
        )
        children = pathlib.Path(f"/proc/{self.launcher.pid}/task/{self.launcher.pid}/children")
        self.pid = int(wait_for(lambda: children.read_text().split(), "the process inside")[0])
        self.root = pathlib.Path(f"/proc/{self.pid}/root")

    def perf_map(self):
        path = self.root / "tmp/perf-1.map"
        return path.read_text() if path.exists() else ""


assert sys.version_info >= (3, 8)
