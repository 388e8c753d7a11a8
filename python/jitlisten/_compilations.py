"""Log of Numba's compilations in a recorded process: when, for how long, and why. Each line of a file next to the
recording is a JSON object:

    RECORDING.images/compilations.jsonl
        {"pid": 4711, "start": 12345}                              of the process: field 22 of /proc/PID/stat
        {"id": 1, "function": "mixed.smooth", "file": ..., "line": 6, "signature": "(float64[::1], int64)", "depth": 0,
         "thread": 4711, "begin": ns, "caller": "mixed.py:44", "why": "off"}
        {"id": 1, ..., "end": ns, "cpu": ns, "first_use": ns, "llvm": ns, "size": bytes}

A compilation is written when it begins, and again when it ends; the second line replaces the first. A compilation that
was interrupted has one line. `begin` and `end` are CLOCK_MONOTONIC times, like those of samples, and span Numba's own
event `numba:compile`. `cpu` is CPU time of the thread. `first_use` is the part of it in which Numba builds its
registries, once in each process, and compiles its runtime. `llvm` is the part spent in LLVM, according to Numba's
event, without that of `first_use`: the two do not overlap. All include nested compilations; `depth` is the number of
enclosing compilations. `saved` is CPU time after the compilation, to save the code in Numba's cache.

`why` is `cache` for code loaded from the cache, and `wrapper` for the loop that makes a function a ufunc, if Numba
builds it in each run: it never caches that of `@vectorize`. The loop of `@guvectorize` is cached with `cache=True`; its
row has `loop`, and the reason why it was not in the cache. Otherwise `why` is the reason for the compilation: `off`
(cache=True is not set), `pickled` (the function was unpickled, which loses its cache), `new` (no cache entry), `lines`
(the entry has no lines), `processor` (all entries are for other processors), `dynamic` or `lifted` (Numba does not
cache it), `jitclass`, `closure` or `generated` (Numba cannot cache it: `_why_uncacheable`).
`report/src/recording/compilations.rs` reads the file.

The hooks in Numba's compiler and its caches (`_numba/seams.py`) never raise and never change a result. A process that
is not recorded has no hooks.
"""

from __future__ import annotations

import atexit
import itertools
import json
import linecache
import re
import struct
import sys
import threading
from contextlib import suppress
from typing import Any, Dict, List, Optional

from ._files import Directory, os, read_start
from ._library import Clocks
from ._numba.replacement import call_weakly
from ._numba.seams import Hooks, Layer, Original, Part, Seam
from ._owners import is_cell

#: Maximum number of lines per file, and of characters per string.
_MAX_ROWS, _MAX_TEXT_CHARACTERS = 40_000, 400
#: Attribute of a function that was unpickled.
_UNPICKLED = "_jitlisten_unpickled"
#: Modules whose frames lie between a call and the compiler.
_INTERNAL_MODULES = ("numba", "llvmlite", "jitlisten", "contextlib", "functools")

Row = Dict[str, Any]


class _State:
    def __init__(self) -> None:
        #: Recording whose file was started, and the number of rows in it.
        self.recording: Optional[str] = None
        self.row_count = 0
        #: Rows recorded before the path of the recording was final.
        self.pending: List[Row] = []
        self.lock = threading.RLock()
        self.clocks: Optional[Clocks] = None
        self.ids = itertools.count(1)


class _Compilation:
    """A compilation that has begun."""

    def __init__(self, row: Row, code: Any, cpu: int, thread_state: _ThreadState) -> None:
        self.row = row
        #: Code of the function whose event this is; `None` without an event.
        self.code = code
        self.result: Any = None
        #: CPU time of the thread, and sums of the thread's times, at the start.
        self.cpu, self.llvm, self.first_use = cpu, thread_state.llvm_ns, thread_state.first_use_ns


class _ThreadState(threading.local):
    def __init__(self) -> None:
        self.stack: List[_Compilation] = []
        #: Rows to write at the end of the outermost compilation.
        self.rows: List[Row] = []
        #: Reason why the function that is compiled next was not found in a cache.
        self.why: Optional[str] = None
        #: The last compilation, until its code is saved in a cache.
        self.last: Optional[Row] = None
        #: The last load from a cache.
        self.loaded: Optional[Row] = None
        self.llvm_ns, self.llvm_depth, self.llvm_start = 0, 0, 0
        #: CPU time of Numba's first use, and the nesting depth of its functions.
        self.first_use_ns, self.first_use_depth = 0, 0
        #: End of the last of these functions.
        self.first_use_end = 0
        #: True while a function is unpickled.
        self.is_unpickling = False


_state = _State()
_thread_state = _ThreadState()


def begin() -> None:
    """Starts to log compilations. The library knows the current recording, even in the child of a fork."""
    _reset_file(None)
    if not _PART.is_on:
        _state.clocks = Clocks()
        _PART.start()
        os.register_at_fork(after_in_child=call_weakly(_reset_in_child))
        # Writes the rows of a recording whose path became final after the last compilation.
        atexit.register(_write_pending_rows)


def _reset_file(recording: Optional[str]) -> None:
    _state.recording, _state.row_count = recording, 0
    _state.pending = []


def _write_pending_rows() -> None:
    with suppress(Exception):
        _write_rows([])


def _reset_in_child() -> None:
    _thread_state.__init__()  # type: ignore[misc]
    # Another thread may have held the lock.
    _state.lock = threading.RLock()
    _reset_file(None)


def _now() -> int:
    return _state.clocks.monotonic() if _state.clocks is not None else 0


def _cpu() -> int:
    return _state.clocks.thread_cpu() if _state.clocks is not None else 0


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
    enclosing = _thread_state.stack[-1] if _thread_state.stack else None
    if enclosing is not None and _continues(enclosing, compiler.state):
        # The event of this compilation has begun, and will end it.
        enclosing.result = original(compiler)
        return enclosing.result
    compilation = _begin_compilation(_describe_state, compiler.state)
    failure: Optional[type] = None
    try:
        result = original(compiler)
        if compilation is not None:
            compilation.result = result
        return result
    except BaseException as error:
        failure = type(error)
        raise
    finally:
        _end_compilation(compilation, failure)


def _build_wrapper(original: Original, cres: Any, signature: Any) -> Any:
    return _log_wrapper(lambda: original(cres, signature), cres, None)


def _build_generalized_wrapper(original: Original, builder: Any, cres: Any) -> Any:
    return _log_wrapper(lambda: original(builder, cres), cres, getattr(builder, "py_func", None))


def _log_wrapper(build: Any, cres: Any, function: Any) -> Any:
    """Logs a loop that makes a function a ufunc. `function` is given if Numba can cache the loop."""
    if _recording() is None:
        return build()
    compilation = _begin_compilation(_describe_wrapper, cres)
    failure: Optional[type] = None
    try:
        return build()
    except BaseException as error:
        failure = type(error)
        raise
    finally:
        # The lookup in the loop's cache has set the reason.
        why, _thread_state.why = _thread_state.why, None
        if compilation is not None and function is not None and why is not None:
            compilation.row.update(why=_refine_why(why, function), loop=True)
        _end_compilation(compilation, failure)


def _load_overload(original: Original, cache: Any, sig: Any, target_context: Any) -> Any:
    if _recording() is None:
        return original(cache, sig, target_context)
    thread_state = _thread_state
    first_use, start, cpu = thread_state.first_use_ns, _now(), _cpu()
    overload = original(cache, sig, target_context)
    if thread_state.first_use_ns != first_use:
        start = max(start, thread_state.first_use_end)
    cpu = _cpu() - cpu - (thread_state.first_use_ns - first_use)
    _record_lookup(cache, sig, target_context, overload, start, cpu)
    return overload


def _save_overload(original: Original, cache: Any, sig: Any, data: Any) -> Any:
    row, _thread_state.last = _thread_state.last, None
    if row is None or _recording() is None:
        return original(cache, sig, data)
    start = _cpu()
    try:
        return original(cache, sig, data)
    finally:
        with suppress(Exception):
            row["saved"] = _cpu() - start
            # Nested rows are not written yet.
            if not _thread_state.stack:
                _write_rows([row])


def _refresh(original: Original, context: Any) -> Any:
    """Measures Numba's first use. Later calls take almost no time."""
    thread_state = _thread_state
    thread_state.first_use_depth += 1
    start = _cpu() if thread_state.first_use_depth == 1 else 0
    try:
        return original(context)
    finally:
        thread_state.first_use_depth -= 1
        if thread_state.first_use_depth == 0:
            thread_state.first_use_ns += _cpu() - start
            thread_state.first_use_end = _now()


def _rebuild(original: Original, dispatcher_type: Any, *args: Any, **kwargs: Any) -> Any:
    """Marks a function that is unpickled here. Its signatures are compiled before this returns."""
    thread_state, previous = _thread_state, _thread_state.is_unpickling
    is_new = False
    with suppress(Exception):
        # A function of this process is found by its identifier.
        is_new = (kwargs["uuid"] if "uuid" in kwargs else args[0]) not in dispatcher_type._memo
    thread_state.is_unpickling = is_new
    try:
        dispatcher = original(dispatcher_type, *args, **kwargs)
    finally:
        thread_state.is_unpickling = previous
    if is_new:
        with suppress(Exception):
            setattr(dispatcher, _UNPICKLED, True)
    return dispatcher


def _object_compiled(original: Original, library_type: Any, ll_module: Any, buf: bytes) -> Any:
    try:
        if _thread_state.stack:
            _thread_state.stack[-1].row["size"] += code_size(buf)
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
                # LLVM compiles Numba's runtime in its first use.
                if thread_state.llvm_depth == 0 and thread_state.first_use_depth == 0:
                    thread_state.llvm_ns += _cpu() - thread_state.llvm_start

    class CompileListener(event.Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            if _recording() is not None:
                _begin_compilation(_describe_event, event.data)

        def on_end(self, event: Any) -> None:
            with suppress(Exception):
                code = _code_of(event.data["dispatcher"])
                stack = _thread_state.stack
                compilation = next((entry for entry in reversed(stack) if entry.code is code), None)
                _end_compilation(compilation, (event._exc_details or (None,))[0])

    event.register("numba:llvm_lock", LlvmTimer())
    event.register("numba:compile", CompileListener())
    return {
        Seam.COMPILE: _compile,
        Seam.BUILD_WRAPPER: _build_wrapper,
        Seam.BUILD_GENERALIZED_WRAPPER: _build_generalized_wrapper,
        Seam.REFRESH: _refresh,
        Seam.REFRESH_TYPES: _refresh,
        Seam.REBUILD: _rebuild,
        Seam.LOAD_OVERLOAD: _load_overload,
        Seam.LOAD_NO_OVERLOAD: _load_overload,
        Seam.SAVE_OVERLOAD: _save_overload,
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


def _describe_event(data: Any) -> "tuple[Row, Any]":
    """Describes the compilation that an event of Numba belongs to."""
    dispatcher = data["dispatcher"]
    why = _thread_state.why
    if why == "off" and (_thread_state.is_unpickling or getattr(dispatcher, _UNPICKLED, False)):
        why = _why_unpickled(dispatcher)
    with suppress(Exception):
        member = _jitclass_member(dispatcher.py_func, data["args"])
        if member is not None:
            code = member.__code__
            name = member.__qualname__
            row = _make_row(
                member.__module__, name, code.co_filename, code.co_firstlineno, data["args"], why and "jitclass"
            )
            return row, _code_of(dispatcher)
    why = _refine_why(why, dispatcher.py_func)
    func_ir = getattr(dispatcher, "func_ir", None)
    if func_ir is not None:
        return _describe_identity(func_ir.func_id, data["args"], why), _code_of(dispatcher)
    function = dispatcher.py_func
    code = function.__code__
    # The globals of code made by `exec` may lack `__name__`.
    module = getattr(function, "__module__", None) or "<dynamic>"
    return _make_row(module, function.__qualname__, code.co_filename, code.co_firstlineno, data["args"], why), code


def _jitclass_member(function: Any, arguments: Any) -> Any:
    """Returns the user's function that a function which Numba generated for a jitclass calls. None if it is another
    function, or accesses a field."""
    if function.__code__.co_filename != "<string>":
        return None
    from numba.core.types.misc import ClassInstanceType

    if "__numba_cls_" in function.__globals__:
        class_type = function.__globals__["__numba_cls_"].class_type
        return class_type.jit_methods["__init__"].py_func
    (name,) = function.__code__.co_names
    if not isinstance(arguments[0], ClassInstanceType):
        return None
    class_type = arguments[0].class_type
    if name in class_type.jit_methods:
        return class_type.jit_methods[name].py_func
    return class_type.jit_props[name]["set" if function.__name__ == "mutator" else "get"].py_func


def _refine_why(why: Optional[str], function: Any) -> Optional[str]:
    """Returns why Numba cannot cache a function even with cache=True, otherwise `why`."""
    if why in ("off", "new", "lines"):
        with suppress(Exception):
            return _why_uncacheable(function) or why
    return why


def _why_uncacheable(function: Any) -> Optional[str]:
    file = function.__code__.co_filename
    if is_cell(file):
        # Numba caches the code of a cell if it finds its source, in a directory that IPython names.
        if "IPython" not in sys.modules or not linecache.getlines(file):
            return "generated"
    elif file.startswith("<") or not (os.path.exists(file) or linecache.getlines(file, function.__globals__)):
        return "generated"
    from numba.core.dispatcher import Dispatcher

    # The key of a closure's cache entry contains its pickled variables. A pickled compiled function differs in each
    # process.
    variables = [cell.cell_contents for cell in function.__closure__ or ()]
    return "closure" if any(issubclass(type(variable), Dispatcher) for variable in variables) else None


def _describe_state(state: Any) -> "tuple[Row, Any]":
    """Describes a compilation without an event: a kernel, an overload or a ufunc."""
    identity = state.func_id
    why = _refine_why(_thread_state.why, getattr(identity, "func", None))
    return _describe_identity(identity, state.args, why), None


def _describe_identity(identity: Any, arguments: Any, why: Optional[str]) -> Row:
    return _make_row(identity.modname, identity.func_qualname, identity.filename, identity.firstlineno, arguments, why)


def _describe_wrapper(cres: Any) -> "tuple[Row, Any]":
    """Describes the compilation of the loop that makes a function a ufunc."""
    arguments, description = cres.signature.args, cres.fndesc
    identity = getattr(cres.type_annotation, "func_id", None)
    if identity is not None:
        return _describe_identity(identity, arguments, "wrapper"), None
    # Code from the cache does not know its file, but the lookup did.
    row = _make_row(description.modname, description.qualname, "", 0, arguments, "wrapper")
    loaded = _thread_state.loaded
    if loaded is not None and loaded["function"] == row["function"]:
        row.update(file=loaded["file"], line=loaded["line"])
    return row, None


def _code_of(dispatcher: Any) -> Any:
    func_ir = getattr(dispatcher, "func_ir", None)
    function = dispatcher.py_func if func_ir is None else func_ir.func_id.func
    return function.__code__


def _continues(compilation: _Compilation, state: Any) -> bool:
    """Returns true for the compiler run that belongs to an event. It knows the function's module better."""
    try:
        if compilation.code is None or getattr(state.func_id.func, "__code__", None) is not compilation.code:
            return False
        row = compilation.row
        if row["why"] == "jitclass":
            return True
        row["function"] = _truncate("%s.%s" % (state.func_id.modname, state.func_id.func_qualname))
        return True
    except Exception:
        return False


def _begin_compilation(describe: Any, details: Any) -> Optional[_Compilation]:
    try:
        thread_state = _thread_state
        cpu, begin = _cpu(), _now()
        if not thread_state.stack:
            thread_state.llvm_ns = thread_state.llvm_depth = 0
        row, code = describe(details)
        row.update(id=next(_state.ids), begin=begin, size=0)
        thread_state.why = None
        compilation = _Compilation(row, code, cpu, thread_state)
        thread_state.stack.append(compilation)
        _write_rows([row])
        return compilation
    except Exception:
        return None


def _end_compilation(compilation: Optional[_Compilation], failure: Optional[type]) -> None:
    """Ends a compilation. `failure` is the type of the exception that ended it."""
    try:
        thread_state = _thread_state
        if compilation is None or compilation not in thread_state.stack:
            return
        # This also drops nested compilations that raised an exception and therefore never ended.
        del thread_state.stack[thread_state.stack.index(compilation) :]
        row, result = compilation.row, compilation.result
        if isinstance(failure, type) and issubclass(failure, BaseException):
            if not issubclass(failure, Exception):
                return
            row["failed"] = True
        row.update(
            end=_now(),
            cpu=_cpu() - compilation.cpu,
            llvm=thread_state.llvm_ns - compilation.llvm,
            first_use=thread_state.first_use_ns - compilation.first_use,
        )
        if row["why"] in ("new", "lines"):
            if getattr(result, "lifted", None):
                row["why"] = "lifted"
            elif getattr(getattr(result, "library", None), "has_dynamic_globals", False):
                row["why"] = "dynamic"
        if thread_state.stack:
            thread_state.stack[-1].row["size"] += row["size"]
        thread_state.last = row
        _add_row(row)
    except Exception:
        pass


def _record_lookup(cache: Any, sig: Any, context: Any, overload: Any, begin: int, cpu: int) -> None:
    try:
        function: Any = getattr(cache, "_py_func", None)
        if overload is None:
            _thread_state.why = "off" if function is None or not cache._enabled else _why_missed(cache, sig, context)
            return
        _thread_state.why = None
        code = function.__code__
        arguments = _argument_types(sig)
        row = _make_row(
            function.__module__, function.__qualname__, code.co_filename, code.co_firstlineno, arguments, "cache"
        )
        row.update(id=next(_state.ids), begin=begin, end=_now(), cpu=cpu, llvm=0)
        _thread_state.loaded = row
        _add_row(row)
    except Exception:
        pass


def _argument_types(sig: Any) -> Any:
    """Returns the types of the arguments. The program may write a signature as text: `@njit("float64(float64)")`."""
    from numba.core import sigutils

    return sigutils.normalize_signature(sig)[0] if isinstance(sig, str) else getattr(sig, "args", sig)


def _why_missed(cache: Any, sig: Any, context: Any) -> str:
    """Returns the reason of a cache miss: `lines` if the only entry for this processor is from before lines were
    enabled (`_numba/cache_keys.py`), `processor` if all entries are for others, `new` if there is none."""

    def without_marker(target: Any) -> Any:
        return tuple(part for part in target if not str(part).startswith("jitlisten-lines-"))

    wanted_key = cache._index_key(sig, context.codegen())
    targets = [key[1] for key in cache._cache_file._load_index() if key[0] == wanted_key[0]]
    own_targets = [target for target in targets if without_marker(target) == without_marker(wanted_key[1])]
    if any(target != wanted_key[1] for target in own_targets):
        return "lines"
    return "processor" if targets and not own_targets else "new"


_CACHE_OPTION, _PLAIN_DECORATOR = re.compile(r"\bcache\s*="), re.compile(r"@\s*([\w.]+\.)?(jit|njit)\b")


def _why_unpickled(dispatcher: Any) -> str:
    """Returns why an unpickled function has no cache: `off` if it never had one. Numba does not pickle this, so the
    function of that name in this process decides, or else its decorators."""
    function = dispatcher.py_func
    original = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        original = getattr(original, name, None)
    cache = getattr(original, "_cache", None)
    if cache is not None and original is not dispatcher:
        return "pickled" if hasattr(cache, "_py_func") else "off"
    code = function.__code__
    head = []
    for line in linecache.getlines(code.co_filename)[code.co_firstlineno - 1 : code.co_firstlineno + 20]:
        if line.lstrip().startswith("def "):
            break
        head.append(line)
    text = "".join(head)
    return "off" if _PLAIN_DECORATOR.search(text) and not _CACHE_OPTION.search(text) else "pickled"


def _make_row(module: str, name: str, file: str, line: int, arguments: Any, why: Optional[str]) -> Row:
    depth = len(_thread_state.stack)
    row: Row = {
        "function": _truncate("%s.%s" % (module, name)),
        "file": _truncate(os.path.abspath(file) if file and not file.startswith("<") else file),
        "line": int(line),
        "signature": _truncate("(%s)" % ", ".join(map(_format_type, arguments))),
        "depth": depth,
        "thread": threading.get_native_id(),
        "why": why,
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


def _add_row(row: Row) -> None:
    thread_state = _thread_state
    thread_state.rows.append(row)
    if not thread_state.stack or len(thread_state.rows) >= 256:
        rows, thread_state.rows = thread_state.rows, []
        _write_rows(rows)


def _write_rows(rows: List[Row]) -> None:
    recording = _recording()
    if recording is None:
        return
    with _state.lock:
        rows = _state.pending + rows
        _state.pending = []
        if not recording:
            # The end of a compilation replaces its begin.
            _state.pending = list({row["id"]: row for row in rows}.values())[:_MAX_ROWS]
        elif rows and _state.row_count < _MAX_ROWS:
            is_new = recording != _state.recording
            if is_new:
                _reset_file(recording)
            with Directory(recording + ".images") as directory:
                descriptor = directory.append_to("compilations.jsonl")
            try:
                _append_rows(descriptor, rows, is_new)
            finally:
                os.close(descriptor)


def _append_rows(descriptor: int, rows: List[Row], is_new: bool) -> None:
    header = b""
    if is_new:
        # The file may belong to an earlier recording of this name, or to this process before it called `exec`.
        header = (json.dumps({"pid": os.getpid(), "start": _process_start()}) + "\n").encode()
        if os.pread(descriptor, len(header), 0) == header:
            header = b""
        else:
            os.ftruncate(descriptor, 0)
    # JSON cannot escape a name that is not UTF-8.
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    os.write(descriptor, header + lines.encode("utf-8", "replace"))
    _state.row_count += len(rows)


def _process_start() -> int:
    return int(read_start("/proc/self/stat").rpartition(b")")[2].split()[19])
