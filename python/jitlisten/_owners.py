"""Facts of the interpreter, most of which say whose file is whose, written when a recording begins, and again at the
end of a program with cells of IPython:

    RECORDING.images/interpreter.json
        {"library": ["/usr/lib/python3.12", ...], "scripts": ["/usr/bin", ...], "site": [".../site-packages", ...],
         "installed": {"/opt/python": ["numba", "numpy", ...]}, "editable": ["/home/me/project"], "frozen": [...],
         "frozen_library": [...], "stdin": "...", "cells": {"<ipython-input-1-...>": "..."}, "jit_disabled": false}

`library` is Python's standard library, and `scripts` the directories of installed commands. Everything in `site` is
installed. In another directory of `sys.path`, as made by `pip install --target`, only the modules are installed that
belong to a distribution (`*.dist-info`); the user's own may lie beside them. `editable` are the directories of
projects that `pip install -e` uses in place. In a frozen program, whose modules have relative names, `frozen` lists
installed modules and `frozen_library` those of Python. `stdin` is the text of a program that Python reads from standard
input, and `cells` are those of IPython, which are in no file. `jit_disabled`: `NUMBA_DISABLE_JIT` is set.
`report/src/recording/interpreter.rs` reads the file.
"""

from __future__ import annotations

import atexit
import json
import os
import stat
import sys
from typing import Any, Dict, List, Optional, Set

from ._files import Directory

#: Name of the file.
FILE = "interpreter.json"
#: Maximum number of distributions that are read in a directory, and of bytes of each list of files.
_MAX_DISTRIBUTIONS, _MAX_LIST_BYTES = 2000, 4 << 20
#: Maximum size of a program on standard input, and of all cells.
_MAX_PROGRAM_BYTES = 1 << 20
_STANDARD_MODULES = frozenset(getattr(sys, "stdlib_module_names", sys.builtin_module_names))
_DISTRIBUTION_SUFFIXES = (".dist-info", ".egg-info")


def begin() -> None:
    """Writes the facts. They are written when the program ends if the path of the recording is not final yet, and again
    if it ran cells."""
    atexit.register(_end, _write())


def _end(is_written: bool) -> None:
    if not is_written or _cells():
        _write()


def _write() -> bool:
    try:
        from ._library import recording

        path = recording()
        if not path:
            return path is None
        data = json.dumps(facts(), ensure_ascii=False).encode("utf-8", "replace")
        with Directory(path + ".images") as directory:
            directory.write(FILE, data)
    except Exception:
        pass
    return True


def facts() -> Dict[str, Any]:
    site = _site_directories()
    installed = {}
    # Python's own files have absolute names even below a relative entry.
    for directory in [os.path.abspath(path) for path in map(str, sys.path) if path]:
        if directory not in site:
            modules = _installed_modules(directory)
            if modules:
                installed[directory] = sorted(modules)
    return {
        "library": _library_directories(),
        "scripts": _existing([os.path.dirname(sys.executable or ""), os.path.join(sys.prefix, "bin")]),
        "site": site,
        "installed": installed,
        "editable": [path for directory in site for path in _editable_directories(directory)],
        "frozen": _frozen_modules(),
        "stdin": _standard_input(),
        "cells": _cells(),
        "frozen_library": sorted(_STANDARD_MODULES) if _is_frozen() else [],
        "jit_disabled": os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"),
    }


def _existing(directories: List[str]) -> List[str]:
    return sorted({directory for directory in directories if directory and os.path.isdir(directory)})


def _library_directories() -> List[str]:
    # Importing `sysconfig` could import a module of the program that has the name of one of its imports.
    sysconfig = sys.modules.get("sysconfig")
    directories = [os.path.dirname(os.__file__)] if getattr(os, "__file__", None) else []
    if sysconfig is not None:
        directories += [sysconfig.get_path(name) or "" for name in ("stdlib", "platstdlib")]
    return _existing(directories) + [path for path in map(str, sys.path) if path.endswith(".zip") and "python" in path]


def _site_directories() -> List[str]:
    site = sys.modules.get("site")
    directories: List[str] = []
    if site is not None:
        directories += site.getsitepackages() if hasattr(site, "getsitepackages") else []
        directories.append(getattr(site, "USER_SITE", None) or "")
    directories += [path for path in map(str, sys.path) if os.path.basename(path) in ("site-packages", "dist-packages")]
    return _existing(directories)


def _distributions(directory: str) -> List[str]:
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    return [name for name in sorted(names) if name.endswith(_DISTRIBUTION_SUFFIXES)][:_MAX_DISTRIBUTIONS]


def _installed_modules(directory: str) -> Set[str]:
    """Returns the top-level modules of a directory that belong to its distributions."""
    modules: Set[str] = set()
    for distribution in _distributions(directory):
        path = os.path.join(directory, distribution)
        rows = (_read(os.path.join(path, "RECORD")) or _read(os.path.join(path, "top_level.txt")) or "").splitlines()
        tops = {row.split(",")[0].split("/")[0] for row in rows}
        modules.update(top[:-3] if top.endswith(".py") else top for top in tops)
    return {name for name in modules if name and name != ".." and not name.endswith(_DISTRIBUTION_SUFFIXES)}


def _editable_directories(site: str) -> List[str]:
    """Returns the projects that are installed in place, and their links in the directory (`flit install -s`)."""
    directories = []
    for distribution in _distributions(site):
        text = _read(os.path.join(site, distribution, "direct_url.json"))
        try:
            origin = json.loads(text) if text else {}
            url = str(origin.get("url", "")) if origin.get("dir_info", {}).get("editable") else ""
        except Exception:
            continue
        if url.startswith("file://"):
            directories.append(_unquote(url[len("file://") :]))
    links = (os.path.join(site, name) for name in (os.listdir(site) if directories else []))
    directories += [
        link
        for link in links
        if os.path.islink(link) and any(os.path.realpath(link).startswith(path + "/") for path in directories)
    ]
    return directories


def _unquote(url: str) -> str:
    parts = url.encode().split(b"%")
    decoded = parts[:1]
    for part in parts[1:]:
        try:
            decoded.append(bytes([int(part[:2], 16)]) + part[2:])
        except ValueError:
            decoded.append(b"%" + part)
    return os.fsdecode(b"".join(decoded)).rstrip("/")


def _is_frozen() -> bool:
    return bool(getattr(sys, "frozen", False))


def _frozen_modules() -> List[str]:
    """Returns the modules of a frozen program (PyInstaller, cx_Freeze) that have a directory or a distribution beside
    the program: those with files that an archive cannot hold, such as C libraries."""
    if not _is_frozen():
        return []
    modules: Set[str] = set()
    for directory in {getattr(sys, "_MEIPASS", ""), *map(str, sys.path)}:
        if os.path.isdir(directory):
            modules |= _installed_modules(directory)
            modules.update(name for name in os.listdir(directory) if os.path.isdir(os.path.join(directory, name)))
    return sorted(modules)


def _standard_input() -> Optional[str]:
    """Returns the program's text if it is a file that Python reads from standard input."""
    try:
        if sys.argv[:1] not in ([""], ["-"]) or not stat.S_ISREG(os.fstat(0).st_mode):
            return None
        return os.pread(0, _MAX_PROGRAM_BYTES, 0).decode("utf-8", "replace")
    except (OSError, AttributeError):
        return None


def is_cell(file: str) -> bool:
    """Returns True for the names that IPython and ipykernel give to the files of cells."""
    return file.startswith("<ipython-") or os.path.basename(os.path.dirname(file)).startswith("ipykernel_")


def _cells() -> Dict[str, str]:
    """Returns the texts of IPython's cells, by file name."""
    linecache = sys.modules.get("linecache")
    if linecache is None or "IPython" not in sys.modules:
        return {}
    cells: Dict[str, str] = {}
    size = 0
    for name in list(linecache.cache):
        if is_cell(name):
            text = "".join(linecache.getlines(name))
            size += len(text)
            if size > _MAX_PROGRAM_BYTES:
                break
            cells[name] = text
    return cells


def _read(path: str) -> Optional[str]:
    try:
        with open(path, "rb") as file:
            return file.read(_MAX_LIST_BYTES).decode("utf-8", "surrogateescape")
    except OSError:
        return None
