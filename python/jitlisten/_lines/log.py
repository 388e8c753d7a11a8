"""The log of the native library, `JITLISTEN_LOG=[LEVEL:]PATH` or `[LEVEL:]stderr`; silent without the variable.

    jitlisten[4711] warn: no lines: unsupported Numba 0.99.0
"""

from __future__ import annotations

import os
import sys

from .. import _files

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
        _files.append(place, data)
    except (OSError, ValueError):
        pass


def _target(value: str) -> "tuple[str, str]":
    for level in _LEVELS:
        if value.startswith(level + ":"):
            return level, value[len(level) + 1 :]
    return "warn", value
