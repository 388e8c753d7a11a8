"""Makes files and directories that no other local user can redirect, read or change, as the crate ``files`` does.
Nothing else in this package makes a file; ``ci/files.py`` finds any other way.

New files have mode 0600 and are made with ``O_EXCL | O_NOFOLLOW``; directories have mode 0700. A directory of another
user, or one that others may write to, is refused.
"""

from __future__ import annotations

import os
import stat
import tempfile
from typing import Optional

#: A directory with a random name, removed at the end.
Scratch = tempfile.TemporaryDirectory

_SAFELY = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK


class Directory:
    """A directory of this user that nobody else may write to, made if it does not exist; held open in ``with``."""

    def __init__(self, path: str) -> None:
        self.path = path
        #: Whether it was made just now.
        self.is_new = True
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            self.is_new = False
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        found = os.fstat(self._descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            os.close(self._descriptor)
            raise OSError("%s is not a private directory of this user" % path)

    def __enter__(self) -> "Directory":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def write(self, name: str, data: bytes, modified: Optional[int] = None) -> None:
        """Writes a file under a temporary name, then renames it. ``modified`` is its time in seconds."""
        partial = ".jitlisten-%d-%s.new" % (os.getpid(), name[-100:])
        self._remove(partial)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFELY, 0o600, dir_fd=self._descriptor)
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
        """The descriptor of a regular file of this user, made if it does not exist, for reading and appending."""
        descriptor = _open(name, os.O_RDWR, self._descriptor)
        try:
            _check(os.fstat(descriptor))
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
    """Writes a file in directories below one of ours, and returns its path."""
    *folders, name = [part for part in relative.split("/") if part not in ("", ".", "..")]
    for folder in folders:
        directory = os.path.join(directory, folder)
        with Directory(directory):
            pass
    with Directory(directory) as opened:
        opened.write(name, data, modified)
    return os.path.join(directory, name)


def append(path: str, data: bytes) -> None:
    """Appends to a file of this user or a character device; a new file has mode 0600."""
    descriptor = _open(path, os.O_WRONLY, None)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISCHR(found.st_mode):
            _check(found)
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def _open(path: str, access: int, directory: Optional[int]) -> int:
    flags = access | os.O_APPEND | os.O_CREAT | _SAFELY
    return os.open(path, flags, 0o600, dir_fd=directory)


def _check(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or found.st_uid != os.geteuid():
        raise OSError("not a regular file of this user with one name")
