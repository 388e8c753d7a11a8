"""Stands in for Numba's debug information builder while one function is lowered.

Numba calls `mark_location` for each instruction of its IR, with a line. The file is known, too: every instruction of
Numba's IR keeps the file it comes from (`lowerer.loc`), through inlining by Numba itself (`inline='always'`, closures,
stencils) and through the making of parallel kernels, whose text is generated and whose statements are the user's.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional, Tuple

from . import log, names, sources, wrappers
from .locations import Inlined, Place, outermost, place_of
from .metadata import ModuleLines, Node, begin
from .names import ARRAY_EXPRESSION, GENERATED, Origin


class _Current(threading.local):
    def __init__(self) -> None:
        # The parallel loops whose kernels are being made.
        self.loops: List[Origin] = []
        # The statement that is being lowered, and the name of its function.
        self.loc: Any = None
        self.function = ""
        # The location of the head of its function.
        self.head: Optional[Node] = None


_current = _Current()


def _loop() -> Optional[Origin]:
    return _current.loops[-1] if _current.loops else None


def _statement() -> Optional[Origin]:
    if _current.loc is None:
        return None
    place = place_of(_current.loc)
    return Origin(place.filename, place.line, _current.function)


def is_head(location: Any) -> bool:
    """Whether arguments are being unpacked: debuggers stop behind that."""
    return location is _current.head


@contextmanager
def within_loop(lowerer: Any, parfor: Any) -> Iterator[None]:
    """While the kernel of this loop is made."""
    try:
        # Of nested loops, the function is the outermost's: the kernel's own text is generated.
        function = _current.loops[-1].function if _current.loops else names.qualified(lowerer)
        # Of a NumPy function that Numba has made a loop of: its call.
        loc = outermost(parfor.loc)
        loop = Origin(loc.filename, loc.line, function)
    except AttributeError:
        loop = Origin(GENERATED, 0, "")
    _current.loops.append(loop)
    # Numba lowers a loop without a call of `mark_location`: what starts the threads would have the line of the
    # statement before.
    if isinstance(lowerer.debuginfo, LineBuilder):
        lowerer.debuginfo.mark_location(lowerer.builder, lowerer.loc.line)
    try:
        yield
    finally:
        _current.loops.pop()


def take_over(lowerer: Any) -> None:
    """Gives a lowerer our builder, unless it has one of its own, or compiles for something else than this process."""
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
        log.warn("no lines for a function: %s: %s" % (type(error).__name__, error))


class LineBuilder:
    """Has the interface of `numba.core.debuginfo.AbstractDIBuilder`."""

    def __init__(self, lowerer: Any, empty: Any) -> None:
        self._lowerer = lowerer
        self._empty = empty
        self._module = lowerer.module
        loc = lowerer.func_ir.loc
        # The line of the first decorator, if there is one.
        self._first = loc.line
        self._source = loc.filename
        self._known = names.generated(lowerer, _loop(), _statement())
        # The lines of its own text mean nothing: of a kernel those of a made-up file, of an array expression all.
        self._has_one_line = self._known is not None and self._known.kind == ARRAY_EXPRESSION
        # Of what is generated for a statement of a kernel: the function of the loop.
        self._owner = self._known.owner if self._known is not None and self._known.owner else names.qualified(lowerer)
        if self._known is not None:
            source, first = self._known.path, self._known.line
        else:
            source, first = loc.filename, loc.line
        sources.learn(source, getattr(lowerer.func_ir.func_id.func, "__globals__", None))
        whole = self._known is None or self._known.name is not None
        self._line = sources.def_line(source, first) if whole else first
        self._path = sources.path(source)
        self._symbol = ""
        self._subprogram: Optional[Node] = None
        self._head: Optional[Node] = None
        self._lines: Optional[ModuleLines] = None
        # By place of the instruction, and the line that Numba asks for.
        self._locations: Dict[Tuple[str, int, int, int], Node] = {}
        # By identity of the inlined call, which is kept beside.
        self._calls: Dict[int, Tuple[Inlined, Node]] = {}
        self._last: Tuple[Any, int, Optional[Node]] = (None, 0, None)
        # The one that Numba calls often.
        self.mark_variable = empty.mark_variable

    def mark_subprogram(self, function: Any, qualname: str, *_: Any, **__: Any) -> None:
        """A function begins."""
        self._subprogram = None
        self._locations, self._calls, self._last = {}, {}, (None, 0, None)
        try:
            name = names.qualified(self._lowerer) if names.is_numbas(self._lowerer) else qualname
            if self._known is not None:
                place = "%s %s:%d" % (self._known.kind, self._path.rpartition("/")[2], self._line)
                name = self._known.name or place
            linkage = names.linkage(self._lowerer, function, self._known, name)
            self._lines = begin(self._module, self._path)
            self._subprogram = self._lines.subprogram(function, name, linkage, self._path, self._line)
            self._head = self._lines.location(self._subprogram, self._line)
            self._lines.heads[function.name] = self._head
            self._symbol = function.name
            wrappers.remember(function.name, wrappers.Place(name, linkage, self._path, self._line))
        except Exception as error:
            self._failed(error)

    def mark_location(self, builder: Any, line: int, *_: Any, **__: Any) -> None:
        """What is built from now on comes from this line."""
        if self._subprogram is None:
            return
        try:
            loc = _current.loc = self._lowerer.loc
            _current.function, _current.head = self._owner, self._head
            last, last_line, found = self._last
            if loc is not last or line != last_line:
                place = place_of(loc)
                found = self._found(place, place.line if line == loc.line else line)
                self._last = (loc, line, found)
            builder.debug_metadata = found
        except Exception as error:
            self._failed(error)

    def _found(self, place: Place, line: int) -> Node:
        key = (place.filename, place.line, id(place.frame), line)
        found = self._locations.get(key)
        if found is None:
            found = self._locations[key] = self._location(place, line)
        return found

    def _location(self, place: Place, line: int) -> Node:
        lines, scope = self._lines, self._subprogram
        assert lines is not None and scope is not None
        if place.line < 1:
            return lines.location(scope, 0)
        if place.frame is not None and line == place.line:
            return self._inlined_location(lines, place, place.frame)
        filename = place.filename
        # Arguments are stored at another line than the instruction's: the function's.
        of_function = line != place.line or (filename == self._source and self._first <= line <= self._line)
        if of_function or self._has_one_line or (self._known is not None and filename == GENERATED):
            return lines.location(scope, self._line)
        path = sources.path(filename)
        if path != self._path:
            return lines.location(lines.scope(scope, path), line)
        if self._known is None:
            wrappers.begins(self._symbol, line)
        return lines.location(scope, line)

    def _inlined_location(self, lines: ModuleLines, place: Place, frame: Inlined) -> Node:
        first, line = sources.def_line(frame.filename, frame.first), place.line
        own, path = sources.path(frame.filename), sources.path(place.filename)
        is_numbas = frame.module.startswith("numba.")
        qualified = "%s.%s" % (frame.module, frame.name)
        scope = lines.inlined(qualified if is_numbas else frame.name, "" if is_numbas else qualified, own, first)
        if path != own:
            scope = lines.scope(scope, path)
        elif frame.first <= line <= first:
            line = first
        known = self._calls.get(id(frame))
        if known is None:
            known = self._calls[id(frame)] = (frame, lines.call(self._found(frame.call, frame.call.line)))
        return lines.location(scope, line, known[1])

    def _failed(self, error: Exception) -> None:
        log.warn("no lines for %s: %s: %s" % (self._source, type(error).__name__, error))

    def __getattr__(self, name: str) -> Any:
        # What else Numba calls: nothing happens.
        return getattr(self._empty, name)
