"""The log of the native library, `JITLISTEN_LOG=[LEVEL:]PATH` or `[LEVEL:]stderr`; silent without the variable.

    jitlisten[4711] warn: no lines: unsupported Numba 0.99.0
"""

from __future__ import annotations

import os
import stat
import sys

_LEVELS = ("error", "warn", "info", "debug")


def warn(message: str) -> None:
    """Something is not as the user might think."""
    _line("warn", message)


def info(message: str) -> None:
    """What was found and what is done about it."""
    _line("info", message)


def _line(level: str, message: str) -> None:
    try:
        wanted, place = _target(os.environ.get("JITLISTEN_LOG", ""))
        if not place or _LEVELS.index(level) > _LEVELS.index(wanted):
            return
        text = "jitlisten[%d] %s: %s\n" % (os.getpid(), level, message.replace("\n", " "))
        data = text.encode("utf-8", "backslashreplace")
        if place == "stderr":
            # Closed by the host, or put in its own place: not ours to write to.
            if sys.__stderr__ is not None:
                os.write(2, data)
            return
        _append(place, data)
    except (OSError, ValueError):
        pass


def _target(value: str) -> "tuple[str, str]":
    for level in _LEVELS:
        if value.startswith(level + ":"):
            return level, value[len(level) + 1 :]
    return "warn", value


def _append(path: str, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    try:
        found = os.fstat(descriptor)
        ours = stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_uid == os.geteuid()
        if ours or stat.S_ISCHR(found.st_mode):
            os.write(descriptor, data)
    finally:
        os.close(descriptor)
