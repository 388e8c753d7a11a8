"""What Numba compiles while the process is recorded: when, for how long, and why. One line of JSON each, beside the
recording:

    RECORDING.images/compilations.jsonl
        {"pid": 4711, "start": 12345}                              of the process: field 22 of /proc/PID/stat
        {"function": "mixed.smooth", "file": ..., "line": 6, "signature": "(float64[::1], int64)", "depth": 0, "thread":
        4711,
         "begin": ns, "end": ns, "cpu": ns, "llvm": ns, "size": bytes, "caller": "mixed.py:44", "why": "off"}

`begin` and `end` are of CLOCK_MONOTONIC, which samples carry; `cpu` is the thread's processor time, and `llvm` what of
it was in LLVM, by Numba's own event; both include what is compiled inside. `depth` counts the compilations that it is
part of. `why` is `cache` for code that was loaded from Numba's cache, and otherwise why it was not: `off` (cache=True
is not set), `new` (no entry), `lines` (the entry has no lines), `dynamic`, `lifted` (Numba does not cache such code).
`report/src/compilations.rs` reads it.

Numba's compiler and its caches are wrapped when they are imported. Nothing here raises, nor changes what they return. A
process that is not recorded has no wrappers.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import struct
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from ._files import Directory
from ._lines.imports import Watch

#: No file grows beyond this many compilations, no text beyond this many characters.
_MOST, _LONGEST = 20_000, 400
#: Modules that stand between a call and the compiler.
_BETWEEN = ("numba", "llvmlite", "jitlisten", "contextlib", "functools")

# The program may replace them.
_now, _cpu, _thread = time.monotonic_ns, time.thread_time_ns, threading.get_native_id


class _State:
    def __init__(self) -> None:
        self.watch: Optional[Watch] = None
        #: The recording whose file was begun, and the number of rows in it.
        self.recording: Optional[str] = None
        self.written = 0
        #: Rows that came before the recording had its place.
        self.waiting: List[Dict[str, Any]] = []
        self.lock = threading.RLock()


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.stack: List[Dict[str, Any]] = []
        self.rows: List[Dict[str, Any]] = []
        #: Why the next compilation was not found in a cache.
        self.why: Optional[str] = None
        #: Of the outermost compilation: nanoseconds in LLVM so far, how deep in LLVM it is, and since when.
        self.llvm, self.inside, self.since = 0, 0, 0


_state = _State()
_of_thread = _OfThread()


def begin() -> None:
    """A recording has begun. The library knows which, also in the child of a fork."""
    _begin_file(None)
    if _state.watch is None:
        _state.watch = Watch({name: functools.partial(_guarded, after) for name, after in _PATCHES.items()})
        _state.watch.start()
        os.register_at_fork(after_in_child=_in_child)
        # Of a recording that got its place after the last compilation.
        atexit.register(_guarded, lambda _: _write([]), None)


def _begin_file(recording: Optional[str]) -> None:
    _state.recording, _state.written = recording, 0
    _state.waiting = []


def _guarded(after: Callable[[Any], None], module: Any) -> None:
    try:
        after(module)
    except Exception:
        pass


def _in_child() -> None:
    _of_thread.__init__()  # type: ignore[misc]
    # Another thread may have held it.
    _state.lock = threading.RLock()
    _begin_file(None)


def _recording() -> Optional[str]:
    """The recording of this process; empty until it has its place, which is at its first sample if an earlier one is
    there."""
    try:
        from ._library import recording

        return recording()
    except Exception:
        return None


# Numba
# -------------------------------------------------------------------------------------------------------------------


def _compiler(module: Any) -> None:
    from numba.core import codegen, event

    class Llvm(event.Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            mine = _of_thread
            if mine.stack:
                mine.inside += 1
                if mine.inside == 1:
                    mine.since = _cpu()

        def on_end(self, event: Any) -> None:
            mine = _of_thread
            if mine.inside:
                mine.inside -= 1
                if mine.inside == 0:
                    mine.llvm += _cpu() - mine.since

    def make(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def _compile_core(self: Any) -> Any:
            if _recording() is None:
                return original(self)
            row = _entered(self.state)
            result = None
            try:
                result = original(self)
                return result
            finally:
                _left(row, result)

        return _compile_core

    _wrap(module.CompilerBase, "_compile_core", make)
    event.register("numba:llvm_lock", Llvm())
    _codegen(codegen)


def _caching(module: Any) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def load_overload(self: Any, sig: Any, target_context: Any) -> Any:
            if _recording() is None:
                return original(self, sig, target_context)
            began = _now(), _cpu()
            found = original(self, sig, target_context)
            _looked_up(self, sig, target_context, found, began)
            return found

        return load_overload

    _wrap(module.Cache, "load_overload", make)
    _wrap(module.NullCache, "load_overload", make)


def _codegen(module: Any) -> None:
    original = module.CPUCodeLibrary.__dict__["_object_compiled_hook"].__func__

    @functools.wraps(original)
    def _object_compiled_hook(cls: Any, ll_module: Any, buf: bytes) -> Any:
        try:
            if _of_thread.stack:
                _of_thread.stack[-1]["size"] += code_size(buf)
        except Exception:
            pass
        return original(cls, ll_module, buf)

    module.CPUCodeLibrary._object_compiled_hook = classmethod(_object_compiled_hook)


_PATCHES = {"numba.core.caching": _caching, "numba.core.compiler": _compiler}


def _wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    original = owner.__dict__[name]
    setattr(owner, name, functools.wraps(original)(make(original)))


def code_size(image: bytes) -> int:
    """Bytes of the executable sections of an object (`elf(5)`)."""
    if image[:6] != b"\x7fELF\x02\x01":
        return 0
    (table,) = struct.unpack_from("<Q", image, 40)
    size, count = struct.unpack_from("<HH", image, 58)
    sections = (struct.unpack_from("<IIQQQQ", image, table + number * size) for number in range(count))
    return sum(section[5] for section in sections if section[2] & 4)


# Rows
# --------------------------------------------------------------------------------------------------------------------


def _entered(state: Any) -> Optional[Dict[str, Any]]:
    try:
        mine = _of_thread
        if not mine.stack:
            mine.llvm = mine.inside = 0
        identity = state.func_id
        row = _row(identity.modname, identity.func_qualname, identity.filename, identity.firstlineno, state.args)
        row.update(llvm=mine.llvm, size=0, why=mine.why)
        mine.why = None
        mine.stack.append(row)
        return row
    except Exception:
        return None


def _left(row: Optional[Dict[str, Any]], result: Any) -> None:
    try:
        mine = _of_thread
        if row is None or row not in mine.stack:
            return
        # What did not end, because it raised.
        del mine.stack[mine.stack.index(row) :]
        row["end"], row["cpu"] = _now(), _cpu() - row["cpu"]
        row["llvm"] = mine.llvm - row["llvm"]
        if row["why"] in ("new", "lines"):
            if getattr(result, "lifted", None):
                row["why"] = "lifted"
            elif getattr(getattr(result, "library", None), "has_dynamic_globals", False):
                row["why"] = "dynamic"
        if result is None:
            row["failed"] = True
        if mine.stack:
            mine.stack[-1]["size"] += row["size"]
        _add(row)
    except Exception:
        pass


def _looked_up(cache: Any, sig: Any, context: Any, found: Any, began: Tuple[int, int]) -> None:
    try:
        function: Any = getattr(cache, "_py_func", None)
        if found is None:
            _of_thread.why = "off" if function is None or not cache._enabled else _why_missed(cache, sig, context)
            return
        _of_thread.why = None
        code = function.__code__
        arguments = getattr(sig, "args", sig)
        row = _row(function.__module__, function.__qualname__, code.co_filename, code.co_firstlineno, arguments)
        row.update(begin=began[0], end=_now(), cpu=_cpu() - began[1], llvm=0, why="cache")
        _add(row)
    except Exception:
        pass


def _why_missed(cache: Any, sig: Any, context: Any) -> str:
    """Numba has no entry for it; maybe one of the time before there were lines (`_lines/patches.py`)."""

    def without_marker(key: Any) -> Any:
        return key[0], tuple(part for part in key[1] if not str(part).startswith("jitlisten-lines-"))

    wanted = cache._index_key(sig, context.codegen())
    index = cache._cache_file._load_index()
    same = [key for key in index if without_marker(key) == without_marker(wanted)]
    return "lines" if any(key[1] != wanted[1] for key in same) else "new"


def _row(module: str, name: str, file: str, line: int, arguments: Any) -> Dict[str, Any]:
    depth = len(_of_thread.stack)
    row: Dict[str, Any] = {
        "function": _short("%s.%s" % (module, name)),
        "file": _short(os.path.abspath(file) if not file.startswith("<") else file),
        "line": int(line),
        "signature": _short("(%s)" % ", ".join(map(_type, arguments))),
        "depth": depth,
        "thread": _thread(),
        "begin": _now(),
        "cpu": _cpu(),
    }
    if depth == 0:
        row["caller"] = _caller()
    return row


def _type(type: Any) -> str:
    """As it is written in Python: ``float64[::1]``."""
    layout, dimensions = getattr(type, "layout", None), getattr(type, "ndim", None)
    if layout not in ("C", "F", "A") or not isinstance(dimensions, int) or not hasattr(type, "dtype"):
        return str(type)
    axes = [":"] * max(dimensions, 1)
    if layout != "A":
        axes[-1 if layout == "C" else 0] = "::1"
    return "%s[%s]" % (type.dtype, ", ".join(axes))


def _caller() -> Optional[str]:
    """Who called for it: the innermost line outside of Numba."""
    frame = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.split(".")[0] not in _BETWEEN and not frame.f_code.co_filename.startswith("<frozen"):
            return _short("%s:%d" % (frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _add(row: Dict[str, Any]) -> None:
    mine = _of_thread
    mine.rows.append(row)
    if not mine.stack or len(mine.rows) >= 256:
        rows, mine.rows = mine.rows, []
        _write(rows)


def _write(rows: List[Dict[str, Any]]) -> None:
    recording = _recording()
    if recording is None:
        return
    with _state.lock:
        rows = (_state.waiting + rows)[: max(_MOST - _state.written, 0)]
        _state.waiting = []
        if not recording:
            _state.waiting = rows
        elif rows:
            is_new = recording != _state.recording
            if is_new:
                _begin_file(recording)
            with Directory(recording + ".images") as directory:
                descriptor = directory.append_to("compilations.jsonl")
            try:
                _append(descriptor, rows, is_new)
            finally:
                os.close(descriptor)


def _append(descriptor: int, rows: List[Dict[str, Any]], is_new: bool) -> None:
    head = b""
    if is_new:
        # Of an earlier recording of this name; or of this process, before it called `exec`.
        head = (json.dumps({"pid": os.getpid(), "start": _start()}) + "\n").encode()
        if os.pread(descriptor, len(head), 0) == head:
            head = b""
        else:
            os.ftruncate(descriptor, 0)
    os.write(descriptor, head + "".join(json.dumps(row) + "\n" for row in rows).encode())
    _state.written += len(rows)


def _start() -> int:
    with open("/proc/self/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])
