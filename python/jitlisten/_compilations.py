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

import functools
import json
import os
import stat
import struct
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from ._lines.imports import Watch

#: No file grows beyond this many compilations, no text beyond this many characters.
_MOST, _LONGEST = 20_000, 400
#: The words behind the name of the file in JITLISTEN_RECORD (`sampler/src/options.rs`).
_FLAGS = {"wall", "children", "append", "no-images", "no-python"}
_VALUES = {"hz", "event", "seconds", "pid", "recorder"}
#: Modules that stand between a call and the compiler.
_BETWEEN = ("numba", "llvmlite", "jitlisten", "contextlib", "functools")

# The program may replace them.
_now, _cpu, _thread = time.monotonic_ns, time.thread_time_ns, threading.get_native_id


class _State:
    def __init__(self) -> None:
        self.watch: Optional[Watch] = None
        #: The recording, and whether children have one of their own.
        self.recording: Optional[str] = None
        self.children = False
        self.written = 0
        self.file_begun = False


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


def install() -> None:
    """Below `jitlisten record`: for the recording that the environment names."""
    try:
        found = _of_environment(dict(os.environ), os.getpid())
        if found is not None:
            begin(*found)
    except Exception:
        pass


def begin(recording: str, children: bool) -> None:
    """A recording begins, with this name: `%p` and `%h` as in the name of its file."""
    _state.recording, _state.children = os.path.abspath(_expanded(recording)), children
    _state.written, _state.file_begun = 0, False
    if _state.watch is None:
        _state.watch = Watch({name: functools.partial(_guarded, after) for name, after in _PATCHES.items()})
        _state.watch.start()
        os.register_at_fork(after_in_child=_in_child)


def end() -> None:
    """The recording ends."""
    _state.recording = None


def _guarded(after: Callable[[Any], None], module: Any) -> None:
    try:
        after(module)
    except Exception:
        pass


def _of_environment(environment: Dict[str, str], pid: int) -> Optional[Tuple[str, bool]]:
    if environment.get("JITLISTEN_RECORD_BEGUN") != str(pid):
        return None
    name, *words = environment.get("JITLISTEN_RECORD", "").split(",")
    for at in range(len(words), 0, -1):
        word, is_pair, _ = words[at - 1].partition("=")
        if not words[at - 1] and at < len(words):
            # An empty word ends the name.
            name, words = ",".join([name, *words[: at - 1]]), words[at:]
            break
        if word not in (_VALUES if is_pair else _FLAGS):
            name = ",".join([name, *words[:at]])
            words = words[at:]
            break
    meant = next((word[4:] for word in words if word.startswith("pid=")), str(pid))
    children = "children" in words
    if meant != str(pid):
        name = _of_child(name, pid)
    return (name, children) if name else None


def _of_child(name: str, pid: int) -> str:
    return name if "%p" in name else "%s.%d" % (name, pid)


def _expanded(name: str) -> str:
    if "%" not in name:
        return name
    known = {"p": str(os.getpid()), "h": os.uname().nodename, "": "%"}
    parts = name.replace("%%", "%\0").split("%")
    shown = [parts[0]]
    for part in parts[1:]:
        letter = part[:1].strip("\0")
        shown.append((known[letter] + part[1:]) if letter in known else "%" + part)
    return "".join(shown)


def _in_child() -> None:
    _of_thread.__init__()  # type: ignore[misc]
    recording = _state.recording
    if recording is not None:
        _state.recording = _of_child(recording, os.getpid()) if _state.children else None
        _state.written, _state.file_begun = 0, False


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
            if _state.recording is None:
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
            if _state.recording is None:
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


#: None of these is one that `_lines` waits for: a module has one watch.
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
        _write(rows[: max(_MOST - _state.written, 0)])
        _state.written += len(rows)


def _write(rows: List[Dict[str, Any]]) -> None:
    if not rows or _state.recording is None:
        return
    folder = _state.recording + ".images"
    try:
        os.mkdir(folder)
    except FileExistsError:
        pass
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
    descriptor = os.open(os.path.join(folder, "compilations.jsonl"), flags, 0o600)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or found.st_uid != os.geteuid():
            return
        head = b""
        if not _state.file_begun:
            # Of an earlier recording of this name; or of this process, before it called `exec`.
            head = (json.dumps({"pid": os.getpid(), "start": _start()}) + "\n").encode()
            if os.pread(descriptor, len(head), 0) == head:
                head = b""
            else:
                os.ftruncate(descriptor, 0)
            _state.file_begun = True
        os.write(descriptor, head + "".join(json.dumps(row) + "\n" for row in rows).encode())
    finally:
        os.close(descriptor)


def _start() -> int:
    with open("/proc/self/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])
