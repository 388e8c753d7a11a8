"""Session of this process, controlled through the C API."""

import ctypes
import importlib
import os
import re
import sys
from types import ModuleType
from typing import Any, List, Optional, Sequence, Tuple, Union

from . import Error, Function, Llvm, Status, _llvmlite
from ._library import COUNTERS, Options, check, collect, in_process, library, statistics

_ALL = ("perfmap", "jitdump", "unwind", "image", "gdb", "modules")


def enable(sinks: Union[str, Sequence[str]], lines: bool, directory: Optional[str], log: Optional[str]) -> None:
    names = _parse_sinks(sinks)
    if directory is not None and not (os.path.isdir(directory) and os.access(directory, os.W_OK)):
        raise Error(f"{directory!r} is not a writable directory")
    if statistics() is None:
        _open_session(names, directory, log)
    else:
        for name in names:
            check(library().jitlisten_enable(name.encode()))
    _llvmlite.use_hooks()
    if lines:
        _install_lines()


def _parse_sinks(sinks: Union[str, Sequence[str]]) -> Tuple[str, ...]:
    requested = sinks.split(",") if isinstance(sinks, str) else list(sinks)
    names = tuple(name.strip() for name in requested)
    if names == ("all",):
        return _ALL
    for name in names:
        if name not in _ALL:
            raise Error(f"unknown sink {name!r}: choose from {', '.join(_ALL)}")
    if not names:
        raise Error("name at least one sink; disable() turns all off")
    return names


def _open_session(names: Tuple[str, ...], directory: Optional[str], log: Optional[str]) -> None:
    options = Options(size=ctypes.sizeof(Options), sinks=",".join(names).encode())
    if directory is not None:
        options.directory = os.fsencode(directory)
    if log is not None:
        options.log = os.fsencode(log)
    check(library().jitlisten_open_with(ctypes.byref(options)))


def _lines_module() -> Optional[ModuleType]:
    """Returns the module that adds line tables to Numba's code, if it is installed."""
    try:
        return importlib.import_module("jitlisten._lines")
    except ImportError:
        return None


def _install_lines() -> None:
    lines = _lines_module()
    if lines is not None:
        lines.install()


def disable() -> None:
    if in_process() is None or statistics() is None:
        return
    check(library().jitlisten_close())
    _llvmlite.use_originals()
    remove = getattr(_lines_module(), "remove", None)
    if remove is not None:
        remove()


def status() -> Status:
    counter_values = statistics() if in_process() else None
    if counter_values is None:
        return Status(False, None, None, (), {}, (), False)
    version = library().jitlisten_version().decode()
    counters = {name: getattr(counter_values, name) for name in COUNTERS}
    llvms = collect(library().jitlisten_llvms, _make_llvm)
    lines = getattr(_lines_module(), "status", None)
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
    enabled = ctypes.c_int32()
    check(library().jitlisten_is_enabled(name.encode(), ctypes.byref(enabled)))
    return bool(enabled.value)


#: ``JITLISTEN_HEARD_BY_...`` of ``jitlisten.h``.
_HEARD_BY = {1: "runtimedyld", 2: "jitlink", 4: "list-call", 8: "list-poll"}


def _make_llvm(record: Any) -> Llvm:
    path = os.fsdecode(record.path)
    discovered_by = {1: "call", 2: "list"}.get(record.discovered_by, "unknown")
    version = record.version.decode("utf-8", "replace") if record.version else None
    return Llvm(
        path,
        _llvm_version(path) or version,
        discovered_by,
        record.objects,
        tuple(name for bit, name in _HEARD_BY.items() if record.heard_by & bit),
        record.linked,
        tuple(record.missing[i].decode("utf-8", "replace") for i in range(record.missing_count)),
    )


def _llvm_version(path: str) -> Optional[str]:
    """Returns the version of an LLVM library. llvmlite reports its own version; other libraries have the version in
    their file name:
    ``libLLVM-14.so.1``, ``libLLVM.so.22.1``."""
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
    return collect(library().jitlisten_functions, _make_function)


def _make_function(record: Any) -> Function:
    file = record.file
    return Function(
        record.name.decode("utf-8", "replace"),
        record.address,
        record.size,
        os.fsdecode(file) if file else None,
        record.line or None,
    )
