"""Log of Numba's compilations in a recorded process: when, for how long, and why. Each compilation is a line of JSON in
a file next to the recording:

    RECORDING.images/compilations.jsonl
        {"pid": 4711, "start": 12345}                              of the process: field 22 of /proc/PID/stat
        {"function": "mixed.smooth", "file": ..., "line": 6, "signature": "(float64[::1], int64)", "depth": 0, "thread":
        4711,
         "begin": ns, "end": ns, "cpu": ns, "llvm": ns, "size": bytes, "caller": "mixed.py:44", "why": "off"}

`begin` and `end` are CLOCK_MONOTONIC times, like those of samples. `cpu` is CPU time of the thread. `llvm` is the part
of it spent in LLVM, according to Numba's own event. Both include nested compilations; `depth` is the number of
enclosing compilations. `why` is `cache` for code loaded from Numba's cache. Otherwise it is the reason for the
compilation: `off` (cache=True is not set), `new` (no cache entry), `lines` (the entry has no lines), `dynamic` or
`lifted` (Numba does not cache such code). `report/src/recording/compilations.rs` reads the file.

The hooks in Numba's compiler and its caches (`_numba/seams.py`) never raise and never change a result. A process that
is not recorded has no hooks.
"""

from __future__ import annotations

import atexit
import json
import os
import struct
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from ._files import Directory
from ._numba.seams import Hooks, Layer, Original, Part, Seam

#: Maximum number of compilations per file, and of characters per string.
_MAX_ROWS, _MAX_TEXT_CHARACTERS = 20_000, 400
#: Modules whose frames lie between a call and the compiler.
_INTERNAL_MODULES = ("numba", "llvmlite", "jitlisten", "contextlib", "functools")

# Bound early, because the program may replace these functions.
_now, _cpu, _thread = time.monotonic_ns, time.thread_time_ns, threading.get_native_id


class _State:
    def __init__(self) -> None:
        #: Recording whose file was started, and the number of rows in it.
        self.recording: Optional[str] = None
        self.row_count = 0
        #: Rows recorded before the path of the recording was final.
        self.pending: List[Dict[str, Any]] = []
        self.lock = threading.RLock()


class _ThreadState(threading.local):
    def __init__(self) -> None:
        self.stack: List[Dict[str, Any]] = []
        self.rows: List[Dict[str, Any]] = []
        #: Reason why the function that is compiled next was not found in a cache.
        self.why: Optional[str] = None
        #: State of the outermost compilation: ns in LLVM so far, nesting depth in LLVM, start of the time in LLVM.
        self.llvm_ns, self.llvm_depth, self.llvm_start = 0, 0, 0


_state = _State()
_thread_state = _ThreadState()


def begin() -> None:
    """Starts to log compilations. The library knows the current recording, even in the child of a fork."""
    _reset_file(None)
    if not _PART.is_on:
        _PART.start()
        os.register_at_fork(after_in_child=_reset_in_child)
        # Writes the rows of a recording whose path became final after the last compilation.
        atexit.register(_write_pending_rows)


def _reset_file(recording: Optional[str]) -> None:
    _state.recording, _state.row_count = recording, 0
    _state.pending = []


def _write_pending_rows() -> None:
    try:
        _write_rows([])
    except Exception:
        pass


def _reset_in_child() -> None:
    _thread_state.__init__()  # type: ignore[misc]
    # Another thread may have held the lock.
    _state.lock = threading.RLock()
    _reset_file(None)


def _recording() -> Optional[str]:
    """Returns the path of this process's recording, or None if there is no recording. Empty until the path is final. If
    an earlier recording has that name, the path is final at the first sample."""
    try:
        from ._library import recording

        return recording()
    except Exception:
        return None


# Hooks in Numba


def _compile(original: Original, compiler: Any) -> Any:
    if _recording() is None:
        return original(compiler)
    row = _begin_compilation(compiler.state)
    result = None
    try:
        result = original(compiler)
        return result
    finally:
        _end_compilation(row, result)


def _load_overload(original: Original, cache: Any, sig: Any, target_context: Any) -> Any:
    if _recording() is None:
        return original(cache, sig, target_context)
    start = _now(), _cpu()
    overload = original(cache, sig, target_context)
    _record_lookup(cache, sig, target_context, overload, start)
    return overload


def _object_compiled(original: Original, library_type: Any, ll_module: Any, buf: bytes) -> Any:
    try:
        if _thread_state.stack:
            _thread_state.stack[-1]["size"] += code_size(buf)
    except Exception:
        pass
    return original(library_type, ll_module, buf)


def _load_hooks() -> Hooks:
    from numba.core import event

    class LlvmTimer(event.Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            thread_state = _thread_state
            if thread_state.stack:
                thread_state.llvm_depth += 1
                if thread_state.llvm_depth == 1:
                    thread_state.llvm_start = _cpu()

        def on_end(self, event: Any) -> None:
            thread_state = _thread_state
            if thread_state.llvm_depth:
                thread_state.llvm_depth -= 1
                if thread_state.llvm_depth == 0:
                    thread_state.llvm_ns += _cpu() - thread_state.llvm_start

    event.register("numba:llvm_lock", LlvmTimer())
    return {
        Seam.COMPILE: _compile,
        Seam.LOAD_OVERLOAD: _load_overload,
        Seam.LOAD_NO_OVERLOAD: _load_overload,
        Seam.OBJECT_COMPILED: _object_compiled,
    }


# If the hooks cannot be loaded, no compilation is logged, and the program continues.
_PART = Part(Layer.COMPILATIONS, _load_hooks, lambda failure: None)


def code_size(image: bytes) -> int:
    """Returns the size of the executable sections of an ELF object (`elf(5)`)."""
    if image[:6] != b"\x7fELF\x02\x01":
        return 0
    (table,) = struct.unpack_from("<Q", image, 40)
    entry_size, count = struct.unpack_from("<HH", image, 58)
    sections = (struct.unpack_from("<IIQQQQ", image, table + index * entry_size) for index in range(count))
    return sum(section[5] for section in sections if section[2] & 4)


# Rows of the log


def _begin_compilation(state: Any) -> Optional[Dict[str, Any]]:
    try:
        thread_state = _thread_state
        if not thread_state.stack:
            thread_state.llvm_ns = thread_state.llvm_depth = 0
        identity = state.func_id
        row = _make_row(identity.modname, identity.func_qualname, identity.filename, identity.firstlineno, state.args)
        row.update(llvm=thread_state.llvm_ns, size=0, why=thread_state.why)
        thread_state.why = None
        thread_state.stack.append(row)
        return row
    except Exception:
        return None


def _end_compilation(row: Optional[Dict[str, Any]], result: Any) -> None:
    try:
        thread_state = _thread_state
        if row is None or row not in thread_state.stack:
            return
        # This also drops nested compilations that raised an exception and therefore never ended.
        del thread_state.stack[thread_state.stack.index(row) :]
        row["end"], row["cpu"] = _now(), _cpu() - row["cpu"]
        row["llvm"] = thread_state.llvm_ns - row["llvm"]
        if row["why"] in ("new", "lines"):
            if getattr(result, "lifted", None):
                row["why"] = "lifted"
            elif getattr(getattr(result, "library", None), "has_dynamic_globals", False):
                row["why"] = "dynamic"
        if result is None:
            row["failed"] = True
        if thread_state.stack:
            thread_state.stack[-1]["size"] += row["size"]
        _add_row(row)
    except Exception:
        pass


def _record_lookup(cache: Any, sig: Any, context: Any, overload: Any, start: Tuple[int, int]) -> None:
    try:
        function: Any = getattr(cache, "_py_func", None)
        if overload is None:
            _thread_state.why = "off" if function is None or not cache._enabled else _why_missed(cache, sig, context)
            return
        _thread_state.why = None
        code = function.__code__
        arguments = getattr(sig, "args", sig)
        row = _make_row(function.__module__, function.__qualname__, code.co_filename, code.co_firstlineno, arguments)
        row.update(begin=start[0], end=_now(), cpu=_cpu() - start[1], llvm=0, why="cache")
        _add_row(row)
    except Exception:
        pass


def _why_missed(cache: Any, sig: Any, context: Any) -> str:
    """Returns the reason of a cache miss: `new` if the cache has no entry, `lines` if its only entry is from before
    lines were enabled (`_numba/cache_keys.py`)."""

    def without_marker(key: Any) -> Any:
        return key[0], tuple(part for part in key[1] if not str(part).startswith("jitlisten-lines-"))

    wanted_key = cache._index_key(sig, context.codegen())
    index = cache._cache_file._load_index()
    similar_keys = [key for key in index if without_marker(key) == without_marker(wanted_key)]
    return "lines" if any(key[1] != wanted_key[1] for key in similar_keys) else "new"


def _make_row(module: str, name: str, file: str, line: int, arguments: Any) -> Dict[str, Any]:
    depth = len(_thread_state.stack)
    row: Dict[str, Any] = {
        "function": _truncate("%s.%s" % (module, name)),
        "file": _truncate(os.path.abspath(file) if not file.startswith("<") else file),
        "line": int(line),
        "signature": _truncate("(%s)" % ", ".join(map(_format_type, arguments))),
        "depth": depth,
        "thread": _thread(),
        "begin": _now(),
        "cpu": _cpu(),
    }
    if depth == 0:
        row["caller"] = _caller()
    return row


def _format_type(numba_type: Any) -> str:
    """Formats a type as Python code: ``float64[::1]``."""
    layout, dimensions = getattr(numba_type, "layout", None), getattr(numba_type, "ndim", None)
    if layout not in ("C", "F", "A") or not isinstance(dimensions, int) or not hasattr(numba_type, "dtype"):
        return str(numba_type)
    axes = [":"] * max(dimensions, 1)
    if layout != "A":
        axes[-1 if layout == "C" else 0] = "::1"
    return "%s[%s]" % (numba_type.dtype, ", ".join(axes))


def _caller() -> Optional[str]:
    """Returns the innermost source line outside of Numba on the stack."""
    frame = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.split(".")[0] not in _INTERNAL_MODULES and not frame.f_code.co_filename.startswith("<frozen"):
            return _truncate("%s:%d" % (frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_TEXT_CHARACTERS else text[: _MAX_TEXT_CHARACTERS - 1] + "…"


def _add_row(row: Dict[str, Any]) -> None:
    thread_state = _thread_state
    thread_state.rows.append(row)
    if not thread_state.stack or len(thread_state.rows) >= 256:
        rows, thread_state.rows = thread_state.rows, []
        _write_rows(rows)


def _write_rows(rows: List[Dict[str, Any]]) -> None:
    recording = _recording()
    if recording is None:
        return
    with _state.lock:
        rows = (_state.pending + rows)[: max(_MAX_ROWS - _state.row_count, 0)]
        _state.pending = []
        if not recording:
            _state.pending = rows
        elif rows:
            is_new = recording != _state.recording
            if is_new:
                _reset_file(recording)
            with Directory(recording + ".images") as directory:
                descriptor = directory.append_to("compilations.jsonl")
            try:
                _append_rows(descriptor, rows, is_new)
            finally:
                os.close(descriptor)


def _append_rows(descriptor: int, rows: List[Dict[str, Any]], is_new: bool) -> None:
    header = b""
    if is_new:
        # The file may belong to an earlier recording of this name, or to this process before it called `exec`.
        header = (json.dumps({"pid": os.getpid(), "start": _process_start()}) + "\n").encode()
        if os.pread(descriptor, len(header), 0) == header:
            header = b""
        else:
            os.ftruncate(descriptor, 0)
    os.write(descriptor, header + "".join(json.dumps(row) + "\n" for row in rows).encode())
    _state.row_count += len(rows)


def _process_start() -> int:
    with open("/proc/self/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])
