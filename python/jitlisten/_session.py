"""The session of this process, through the C API."""

import ctypes
import importlib
import json
import os
import re
import sys
from types import ModuleType
from typing import List, Optional, Sequence, Tuple, Union

from . import Error, Function, Llvm, Status, _llvmlite
from ._library import COUNTERS, Options, check, collect, in_process, library, statistics

_ALL = ("perfmap", "jitdump", "unwind", "image", "gdb", "modules")


def enable(
    sinks: Union[str, Sequence[str]], lines: bool, directory: Optional[str], log: Optional[str]
) -> None:
    names = _names(sinks)
    if directory is not None and not (os.path.isdir(directory) and os.access(directory, os.W_OK)):
        raise Error(f"{directory!r} is not a writable directory")
    if statistics() is None:
        _open(names, directory, log)
    else:
        for name in names:
            check(library().jitlisten_enable(name.encode()))
    _llvmlite.use_hooks()
    if lines:
        _install_lines()


def _names(sinks: Union[str, Sequence[str]]) -> Tuple[str, ...]:
    given = sinks.split(",") if isinstance(sinks, str) else list(sinks)
    names = tuple(name.strip() for name in given)
    if names == ("all",):
        return _ALL
    for name in names:
        if name not in _ALL:
            raise Error(f"unknown sink {name!r}: choose from {', '.join(_ALL)}")
    if not names:
        raise Error("name at least one sink; disable() turns all off")
    return names


def _open(names: Tuple[str, ...], directory: Optional[str], log: Optional[str]) -> None:
    options = Options(size=ctypes.sizeof(Options), sinks=",".join(names).encode())
    if directory is not None:
        options.directory = os.fsencode(directory)
    if log is not None:
        options.log = os.fsencode(log)
    check(library().jitlisten_open_with(ctypes.byref(options)))


def _lines() -> Optional[ModuleType]:
    """The module that gives Numba's code line tables, if it is installed."""
    try:
        return importlib.import_module("jitlisten._lines")
    except ImportError:
        return None


def _install_lines() -> None:
    lines = _lines()
    if lines is not None:
        lines.install()


def disable() -> None:
    if in_process() is None or statistics() is None:
        return
    check(library().jitlisten_close())
    _llvmlite.use_originals()
    remove = getattr(_lines(), "remove", None)
    if remove is not None:
        remove()


def status() -> Status:
    found = statistics() if in_process() else None
    if found is None:
        return Status(False, None, None, (), {}, (), False)
    version = library().jitlisten_version().decode()
    counters = {name: getattr(found, name) for name in COUNTERS}
    llvms = collect(library().jitlisten_llvms, _llvm)
    lines = getattr(_lines(), "status", None)
    return Status(
        True,
        in_process(),
        version,
        tuple(name for name in _ALL if _is_on(name)),
        counters,
        tuple(llvms),
        bool(lines and lines()["active"]),
    )


def _is_on(name: str) -> bool:
    on = ctypes.c_int32()
    check(library().jitlisten_is_enabled(name.encode(), ctypes.byref(on)))
    return bool(on.value)


def _llvm(found: "object") -> Llvm:
    path = os.fsdecode(getattr(found, "path"))
    discovered_by = {1: "call", 2: "list"}.get(getattr(found, "discovered_by"), "unknown")
    facts = json.loads(getattr(found, "facts").decode("utf-8", "replace"))
    return Llvm(
        path,
        _version(path) or facts["version"],
        discovered_by,
        getattr(found, "objects"),
        tuple(facts["heard_by"]),
        facts["linked"],
        tuple(facts["missing"]),
    )


def _version(path: str) -> Optional[str]:
    """llvmlite knows the version of its own; others have it in their name: ``libLLVM-14.so.1``, ``libLLVM.so.22.1``."""
    name = os.path.basename(path)
    binding = sys.modules.get("llvmlite.binding")
    if name.startswith("libllvmlite"):
        version = getattr(binding, "llvm_version_info", None)
        return ".".join(map(str, version)) if version else None
    match = re.match(r"libLLVM(?:-([0-9.]+?)\.so|\.so\.([0-9.]+))", name)
    return next(filter(None, match.groups()), None) if match else None


def functions() -> List[Function]:
    if in_process() is None or statistics() is None:
        raise Error("no session in this process: call enable() first")
    return collect(library().jitlisten_functions, _function)


def _function(found: "object") -> Function:
    file = getattr(found, "file")
    return Function(
        getattr(found, "name").decode("utf-8", "replace"),
        getattr(found, "address"),
        getattr(found, "size"),
        os.fsdecode(file) if file else None,
        getattr(found, "line") or None,
    )
