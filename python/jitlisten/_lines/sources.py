"""Files that locations refer to.

A location outlives the process, so its file must, too. The source of a notebook cell exists only in memory
(`<ipython-input-3-...>`, or ipykernel's `/tmp/ipykernel_4711/123.py`, which is never written). It is saved when the
first function of the cell is compiled, and the location refers to the copy, which every tool that shows source can
find. The source of a module in a zip file is saved, too.
"""

from __future__ import annotations

import hashlib
import linecache
import os
import re
import stat
from typing import Any, Dict, Optional

import numba

from .. import _log
from .._files import Directory

_MAX_BYTES = 4 << 20
# `jitlisten clean` removes old sources only from a directory that contains this file (cli/src/clean.rs): a directory
# without it belongs to the user.
_MARKER = "jitlisten-sources"
_MARKER_TEXT = b"texts of notebook cells, saved by jitlisten\n"
# An absolute path, because a user directory may have the same name.
_NUMBA = os.path.join(os.path.dirname(os.path.abspath(numba.__file__)), "")

_paths: Dict[str, str] = {}
_digests: Dict[str, "tuple[tuple[int, int, int, int], str]"] = {}
_first_lines: Dict["tuple[str, int]", int] = {}
_cannot_save = False


def path(filename: str) -> str:
    """Returns the absolute path of a file or of its saved copy; a name such as `<string>` if there is neither."""
    known_path = _paths.get(filename)
    if known_path is None:
        known_path = _find_path(filename)
        # A name in angle brackets may get a source later, or a different one.
        if not known_path.startswith("<"):
            _paths[filename] = known_path
    return known_path


def register_loader(filename: str, module: Optional[Dict[str, Any]]) -> None:
    """Registers the loader of a module in a zip file, which provides the module's source. Call this before any other
    function that takes the file name. `module` is the globals of a function in that file; a function made by `exec` may
    have the globals of another file."""
    if filename not in _paths and module and module.get("__file__") == filename and not os.path.exists(filename):
        linecache.lazycache(filename, module)


def _find_path(filename: str) -> str:
    if not filename.startswith("<"):
        absolute = os.path.abspath(filename)
        if os.path.exists(absolute):
            return absolute
        return _save_if_available(filename) or absolute
    return _save_if_available(filename) or filename


def digest(filename: str) -> Optional[str]:
    """Returns the first half of the SHA-256 of a file's current contents; None for Numba's own files, which are not
    edited."""
    if filename.startswith(("<", _NUMBA)):
        return None
    try:
        status = os.stat(filename)
        identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        cached = _digests.get(filename)
        if cached is not None and cached[0] == identity:
            return cached[1]
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
            return None
        with open(filename, "rb") as file:
            value = hashlib.sha256(file.read()).hexdigest()[:32]
    except OSError:
        return None
    _digests[filename] = (identity, value)
    return value


_DEF_STATEMENT = re.compile(r"\s*(async\s+def|def)\b")
_MAX_DECORATOR_LINES = 60


def def_line(filename: str, first: int) -> int:
    """Returns the line of `def`. For Python, a function begins with its first decorator."""
    key = (filename, first)
    result = _first_lines.get(key)
    if result is None:
        result = first
        # Reading all of Numba's files would be too slow.
        if not filename.startswith(_NUMBA):
            lines = linecache.getlines(filename)
            for line in range(first, min(first + _MAX_DECORATOR_LINES, len(lines) + 1)):
                if not lines[line - 1].lstrip().startswith(("@", "#")) and _DEF_STATEMENT.match(lines[line - 1]):
                    result = line
                    break
                if line == first and not lines[line - 1].lstrip().startswith("@"):
                    break
        if not filename.startswith("<"):
            _first_lines[key] = result
    return result


def _save_if_available(filename: str) -> Optional[str]:
    text = "".join(linecache.getlines(filename))
    if not text or len(text) > _MAX_BYTES:
        return None
    global _cannot_save
    if _cannot_save:
        return None
    try:
        return _save(filename, text.encode("utf-8", "surrogateescape"))
    except OSError as error:
        _cannot_save = True
        _log.warn("cannot save the sources of notebook cells: %s" % error)
        return None


def _save(filename: str, data: bytes) -> str:
    """Saves a source in a file named after its hash, so that a cell gets the same file when it is run again."""
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
    """Returns the directory `sources` next to the images: in JITLISTEN_DIR, or in /var/tmp/jitlisten-UID."""
    base = os.environ.get("JITLISTEN_DIR")
    if not base:
        base = "/var/tmp/jitlisten-%d" % os.geteuid()
        with Directory(base):
            pass
    directory = Directory(os.path.join(os.path.abspath(base), "sources"))
    if directory.is_new:
        directory.write(_MARKER, _MARKER_TEXT)
    return directory
