"""Replacement for Numba's debug information builder while one function is lowered.

Numba calls `mark_location` with a line for each instruction of its IR. The file is known, too: every instruction keeps
the file that it comes from (`lowerer.loc`). The file survives inlining by Numba (`inline='always'`, closures, stencils)
and the creation of parallel kernels, whose text is generated but whose statements are the user's.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional, Tuple

from .. import _log
from .._numba.locations import Inlined, SourceLocation, outermost, source_location
from . import names, sources, wrappers
from .metadata import ModuleLines, Node, ensure_lines
from .names import ARRAY_EXPRESSION, GENERATED, Origin


class _Current(threading.local):
    def __init__(self) -> None:
        # Parallel loops whose kernels are being compiled.
        self.loops: List[Origin] = []
        # Statement that is being lowered, and the name of the function that contains it.
        self.loc: Any = None
        self.function = ""
        # Location of the head of that function.
        self.head: Optional[Node] = None


_current = _Current()


def _loop() -> Optional[Origin]:
    return _current.loops[-1] if _current.loops else None


def _statement() -> Optional[Origin]:
    if _current.loc is None:
        return None
    source = source_location(_current.loc)
    return Origin(source.filename, source.line, _current.function)


def is_head(location: Any) -> bool:
    """Returns true for the unpacking of arguments. Debuggers stop after it."""
    return location is _current.head


@contextmanager
def within_loop(lowerer: Any, parfor: Any) -> Iterator[None]:
    """Context in which Numba compiles the kernel of a parallel loop."""
    try:
        # A kernel's source is generated, so nested loops are attributed to the function of the outermost loop.
        function = _current.loops[-1].function if _current.loops else names.qualified_name(lowerer)
        # A loop that replaces a NumPy function has the location of the call to that function.
        loc = outermost(parfor.loc)
        loop = Origin(loc.filename, loc.line, function)
    except AttributeError:
        loop = Origin(GENERATED, 0, "")
    _current.loops.append(loop)
    # Numba lowers a loop without calling `mark_location`. Without this call, the code that starts the threads would
    # have the line of the previous statement.
    if isinstance(lowerer.debuginfo, LineBuilder):
        lowerer.debuginfo.mark_location(lowerer.builder, lowerer.loc.line)
    try:
        yield
    finally:
        _current.loops.pop()


def install_builder(lowerer: Any) -> None:
    """Replaces a lowerer's builder with ours, unless it has a real one or compiles for a target other than this
    process."""
    try:
        from numba.core import codegen, cpu, debuginfo

        if type(lowerer.debuginfo) is not debuginfo.DummyDIBuilder:
            return
        if not isinstance(lowerer.context, cpu.CPUContext) or not isinstance(lowerer.library, codegen.CPUCodeLibrary):
            return
        if isinstance(lowerer.library.codegen, codegen.AOTCPUCodegen):
            return
        lowerer.debuginfo = LineBuilder(lowerer, lowerer.debuginfo)
    except Exception as error:
        _log.warn("no lines for a function: %s: %s" % (type(error).__name__, error))


class LineBuilder:
    """Implements the interface of `numba.core.debuginfo.AbstractDIBuilder`."""

    def __init__(self, lowerer: Any, empty: Any) -> None:
        self._lowerer = lowerer
        self._empty = empty
        self._module = lowerer.module
        loc = lowerer.func_ir.loc
        # Line of the first decorator, if there is one.
        self._first = loc.line
        self._source = loc.filename
        self._generated = names.describe_generated(lowerer, _loop(), _statement())
        # Line numbers of generated source are meaningless: some lines of a kernel, all lines of an array expression.
        self._has_one_line = self._generated is not None and self._generated.kind == ARRAY_EXPRESSION
        # Code generated for a statement of a kernel belongs to the function of the loop.
        self._owner = (
            self._generated.owner
            if self._generated is not None and self._generated.owner
            else names.qualified_name(lowerer)
        )
        if self._generated is not None:
            source, first = self._generated.path, self._generated.line
        else:
            source, first = loc.filename, loc.line
        sources.register_loader(source, getattr(lowerer.func_ir.func_id.func, "__globals__", None))
        has_def = self._generated is None or self._generated.name is not None
        self._line = sources.def_line(source, first) if has_def else first
        self._path = sources.path(source)
        self._symbol = ""
        self._subprogram: Optional[Node] = None
        self._head: Optional[Node] = None
        self._lines: Optional[ModuleLines] = None
        # Locations by source location and requested line.
        self._locations: Dict[Tuple[str, int, int, int], Node] = {}
        # Call sites by identity of the inlined call, which is kept alive here.
        self._calls: Dict[int, Tuple[Inlined, Node]] = {}
        self._last: Tuple[Any, int, Optional[Node]] = (None, 0, None)
        # Bound directly, because Numba calls this method most often.
        self.mark_variable = empty.mark_variable

    def mark_subprogram(self, function: Any, qualname: str, *_: Any, **__: Any) -> None:
        """Describes the function whose lowering begins."""
        self._subprogram = None
        self._locations, self._calls, self._last = {}, {}, (None, 0, None)
        try:
            name = names.qualified_name(self._lowerer) if names.is_internal(self._lowerer) else qualname
            if self._generated is not None:
                position = "%s %s:%d" % (self._generated.kind, self._path.rpartition("/")[2], self._line)
                name = self._generated.name or position
            linkage = names.linkage_name(self._lowerer, function, self._generated, name)
            self._lines = ensure_lines(self._module, self._path)
            self._subprogram = self._lines.subprogram(function, name, linkage, self._path, self._line)
            self._head = self._lines.location(self._subprogram, self._line)
            self._lines.heads[function.name] = self._head
            self._symbol = function.name
            wrappers.remember(function.name, wrappers.WrappedFunction(name, linkage, self._path, self._line))
        except Exception as error:
            self._log_failure(error)

    def mark_location(self, builder: Any, line: int, *_: Any, **__: Any) -> None:
        """Sets the line of the instructions that are built from now on."""
        if self._subprogram is None:
            return
        try:
            loc = _current.loc = self._lowerer.loc
            _current.function, _current.head = self._owner, self._head
            last, last_line, location = self._last
            if loc is not last or line != last_line:
                source = source_location(loc)
                location = self._cached_location(source, source.line if line == loc.line else line)
                self._last = (loc, line, location)
            builder.debug_metadata = location
        except Exception as error:
            self._log_failure(error)

    def _cached_location(self, source: SourceLocation, line: int) -> Node:
        key = (source.filename, source.line, id(source.frame), line)
        location = self._locations.get(key)
        if location is None:
            location = self._locations[key] = self._make_location(source, line)
        return location

    def _make_location(self, source: SourceLocation, line: int) -> Node:
        lines, scope = self._lines, self._subprogram
        assert lines is not None and scope is not None
        if source.line < 1:
            return lines.location(scope, 0)
        if source.frame is not None and line == source.line:
            return self._inlined_location(lines, source, source.frame)
        filename = source.filename
        # Arguments are stored with the line of the function, which is not the line of the instruction.
        is_at_head = line != source.line or (filename == self._source and self._first <= line <= self._line)
        if is_at_head or self._has_one_line or (self._generated is not None and filename == GENERATED):
            return lines.location(scope, self._line)
        path = sources.path(filename)
        if path != self._path:
            return lines.location(lines.scope(scope, path), line)
        if self._generated is None:
            wrappers.set_first_statement(self._symbol, line)
        return lines.location(scope, line)

    def _inlined_location(self, lines: ModuleLines, source: SourceLocation, frame: Inlined) -> Node:
        first, line = sources.def_line(frame.filename, frame.first), source.line
        callee_path, path = sources.path(frame.filename), sources.path(source.filename)
        is_internal = frame.module.startswith("numba.")
        qualified = "%s.%s" % (frame.module, frame.name)
        scope = lines.inlined(
            qualified if is_internal else frame.name, "" if is_internal else qualified, callee_path, first
        )
        if path != callee_path:
            scope = lines.scope(scope, path)
        elif frame.first <= line <= first:
            line = first
        known_call = self._calls.get(id(frame))
        if known_call is None:
            known_call = self._calls[id(frame)] = (
                frame,
                lines.call(self._cached_location(frame.call, frame.call.line)),
            )
        return lines.location(scope, line, known_call[1])

    def _log_failure(self, error: Exception) -> None:
        _log.warn("no lines for %s: %s: %s" % (self._source, type(error).__name__, error))

    def __getattr__(self, name: str) -> Any:
        # Other methods have no effect.
        return getattr(self._empty, name)
