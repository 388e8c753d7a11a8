"""Which file a location names.

A location outlives the process, so its file has to, as well. The text of a notebook cell is in memory only
(`<ipython-input-3-...>`, or ipykernel's `/tmp/ipykernel_4711/123.py`, which is never written). It is saved when the
first function of the cell is compiled, and the location names the copy: every tool that shows source finds it. So is the
text of a module in a zip file.
"""

from __future__ import annotations

import hashlib
import linecache
import os
import re
import stat
from typing import Any, Dict, Optional

import numba

from .._files import Directory
from . import log

_MOST_BYTES = 4 << 20
# `jitlisten clean` removes old texts from a directory with this file only (cli/src/clean.rs): a directory that was
# there before is the user's.
_MARKER = "jitlisten-sources"
_MARKER_TEXT = b"texts of notebook cells, saved by jitlisten\n"
# A directory of the user's may have this name, too.
_NUMBA = os.path.join(os.path.dirname(os.path.abspath(numba.__file__)), "")

_paths: Dict[str, str] = {}
_digests: Dict[str, "tuple[tuple[int, int, int, int], str]"] = {}
_first_lines: Dict["tuple[str, int]", int] = {}
_cannot_save = False


def path(filename: str) -> str:
    """The absolute path of a file, or of a saved copy; `<string>` where there is neither."""
    found = _paths.get(filename)
    if found is None:
        found = _find(filename)
        # Names in angle brackets may get a text later, or another one.
        if not found.startswith("<"):
            _paths[filename] = found
    return found


def learn(filename: str, module: Optional[Dict[str, Any]]) -> None:
    """Before the first question about a file: the loader of a module in a zip file has its text. `module` are the
    globals of a function in that file; one that `exec` made may have those of a module in another one."""
    if filename not in _paths and module and module.get("__file__") == filename and not os.path.exists(filename):
        linecache.lazycache(filename, module)


def _find(filename: str) -> str:
    if not filename.startswith("<"):
        absolute = os.path.abspath(filename)
        if os.path.exists(absolute):
            return absolute
        return _saved(filename) or absolute
    return _saved(filename) or filename


def digest(filename: str) -> Optional[str]:
    """The first half of the SHA-256 of a file, as it is now. None for Numba's own, which are not edited."""
    if filename.startswith(("<", _NUMBA)):
        return None
    try:
        found = os.stat(filename)
        identity = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        known = _digests.get(filename)
        if known is not None and known[0] == identity:
            return known[1]
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
            return None
        with open(filename, "rb") as file:
            text = hashlib.sha256(file.read()).hexdigest()[:32]
    except OSError:
        return None
    _digests[filename] = (identity, text)
    return text


_DEFINES = re.compile(r"\s*(async\s+def|def)\b")
_MOST_DECORATORS = 60


def def_line(filename: str, first: int) -> int:
    """The line of `def`: a function begins with its decorators for Python, and with its name for people."""
    key = (filename, first)
    found = _first_lines.get(key)
    if found is None:
        found = first
        # Reading all of Numba's files would cost more than it is worth.
        if not filename.startswith(_NUMBA):
            lines = linecache.getlines(filename)
            for line in range(first, min(first + _MOST_DECORATORS, len(lines) + 1)):
                if not lines[line - 1].lstrip().startswith(("@", "#")) and _DEFINES.match(lines[line - 1]):
                    found = line
                    break
                if line == first and not lines[line - 1].lstrip().startswith("@"):
                    break
        if not filename.startswith("<"):
            _first_lines[key] = found
    return found


def _saved(filename: str) -> Optional[str]:
    text = "".join(linecache.getlines(filename))
    if not text or len(text) > _MOST_BYTES:
        return None
    global _cannot_save
    if _cannot_save:
        return None
    try:
        return _save(filename, text.encode("utf-8", "surrogateescape"))
    except OSError as error:
        _cannot_save = True
        log.warn("cannot save the sources of notebook cells: %s" % error)
        return None


def _save(filename: str, data: bytes) -> str:
    """One file for one text: the same cell, run again, is the same file."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", os.path.basename(filename).strip("<>")).strip("-.") or "source"
    if name.endswith(".py"):
        name = name[:-3]
    digest = hashlib.sha256(data).hexdigest()[:12]
    saved = "%s-%s.py" % (name[:80], digest)
    with _directory() as directory:
        path = os.path.join(directory.path, saved)
        if not os.path.exists(path):
            directory.write(saved, data)
    return path


def _directory() -> Directory:
    """`sources` beside the images: JITLISTEN_DIR, or /var/tmp/jitlisten-UID."""
    base = os.environ.get("JITLISTEN_DIR")
    if not base:
        base = "/var/tmp/jitlisten-%d" % os.geteuid()
        with Directory(base):
            pass
    directory = Directory(os.path.join(os.path.abspath(base), "sources"))
    if directory.is_new:
        directory.write(_MARKER, _MARKER_TEXT)
    return directory
