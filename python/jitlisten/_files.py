"""Creation of files and directories that no other local user can redirect, read or change, like the ``files`` crate. No
other code in this package creates files; ``ci/files.py`` checks that.

New files have mode 0600 and are created with ``O_EXCL | O_NOFOLLOW``. Directories have mode 0700. A directory that
belongs to another user, or that others may write to, is refused.
"""

from __future__ import annotations

import os as _os
import stat
import tempfile
from types import SimpleNamespace
from typing import Any, Optional

#: Functions of `os`, taken now: tests replace the module by one that writes to memory (pyfakefs).
os: Any = SimpleNamespace(**vars(_os))

#: Temporary directory with a random name.
Scratch = tempfile.TemporaryDirectory

_SAFE_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK


class Directory:
    """A directory of this user that no other user may write to, created if necessary. ``with`` holds it open."""

    def __init__(self, path: str) -> None:
        self.path = path
        #: True if the directory was just created.
        self.is_new = True
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            self.is_new = False
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        status = os.fstat(self._descriptor)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            os.close(self._descriptor)
            raise OSError("%s is not a private directory of this user" % path)

    def __enter__(self) -> "Directory":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def write(self, name: str, data: bytes, modified: Optional[int] = None) -> None:
        """Writes a file under a temporary name, then renames it. ``modified`` is its modification time in seconds."""
        partial = ".jitlisten-%d-%s.new" % (os.getpid(), name[-100:])
        self._remove(partial)
        descriptor = os.open(
            partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE_FLAGS, 0o600, dir_fd=self._descriptor
        )
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(data)
                if modified is not None:
                    os.utime(file.fileno(), (modified, modified))
            os.rename(partial, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        except BaseException:
            self._remove(partial)
            raise

    def append_to(self, name: str) -> int:
        """Returns a descriptor for reading and appending to a regular file of this user, which is created if
        necessary."""
        descriptor = _open(name, os.O_RDWR, self._descriptor)
        try:
            _check_regular_file(os.fstat(descriptor))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _remove(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self._descriptor)
        except FileNotFoundError:
            pass


def write_below(directory: str, relative: str, data: bytes, modified: int) -> str:
    """Writes a file into subdirectories of one of our directories, and returns its path."""
    *folders, name = [part for part in relative.split("/") if part not in ("", ".", "..")]
    for folder in folders:
        directory = os.path.join(directory, folder)
        with Directory(directory):
            pass
    with Directory(directory) as opened:
        opened.write(name, data, modified)
    return "%s/%s" % (directory, name)


def append(path: str, data: bytes) -> None:
    """Appends to a file of this user or to a character device. A new file has mode 0600."""
    descriptor = _open(path, os.O_WRONLY, None)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISCHR(status.st_mode):
            _check_regular_file(status)
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def read_start(path: str) -> bytes:
    """Returns the first 4 KiB of a file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data: bytes = os.read(descriptor, 4096)
        return data
    finally:
        os.close(descriptor)


def _open(path: str, access: int, directory: Optional[int]) -> int:
    flags = access | os.O_APPEND | os.O_CREAT | _SAFE_FLAGS
    return int(os.open(path, flags, 0o600, dir_fd=directory))


def _check_regular_file(status: _os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_uid != os.geteuid():
        raise OSError("not a regular file of this user with one name")
