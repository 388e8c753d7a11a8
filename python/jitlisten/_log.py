"""The native library's log, set by `JITLISTEN_LOG=[LEVEL:]PATH` or `[LEVEL:]stderr`; silent without the variable.

Example: `jitlisten[4711] warn: no lines: unsupported Numba 0.99.0`
"""

from __future__ import annotations

import os
import sys

from . import _files

_LEVELS = ("error", "warn", "info", "debug")


def warn(message: str) -> None:
    """Logs a condition that the user may not expect."""
    _write_line("warn", message)


def info(message: str) -> None:
    """Logs a decision."""
    _write_line("info", message)


def _write_line(level: str, message: str) -> None:
    try:
        max_level, target = _parse_setting(os.environ.get("JITLISTEN_LOG", ""))
        if not target or _LEVELS.index(level) > _LEVELS.index(max_level):
            return
        text = "jitlisten[%d] %s: %s\n" % (os.getpid(), level, message.replace("\n", " "))
        data = text.encode("utf-8", "backslashreplace")
        if target == "stderr":
            # If the host has closed or replaced stderr, nothing must be written to it.
            if sys.__stderr__ is not None:
                os.write(2, data)
            return
        _files.append(target, data)
    except (OSError, ValueError):
        pass


def _parse_setting(value: str) -> "tuple[str, str]":
    for level in _LEVELS:
        if value.startswith(level + ":"):
            return level, value[len(level) + 1 :]
    return "warn", value
