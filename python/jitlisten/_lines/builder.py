"""Stands in for Numba's debug information builder while one function is lowered.

Numba calls `mark_location` for each instruction of its IR, with a line. The file is known, too: every instruction of Numba's IR
keeps the file it comes from (`lowerer.loc`), through inlining by Numba itself (`inline='always'`, closures, stencils) and
through the making of parallel kernels, whose text is generated and whose statements are the user's.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Any, Iterator, List, NamedTuple, Optional

from . import log, sources, wrappers
from .metadata import begin

GENERATED = "<string>"
_PRANGE = "__numba_parfor_gufunc"
_STENCIL = "__numba_stencil_"


class Loop(NamedTuple):
    """A loop that becomes a kernel."""

    path: str
    line: int


class _Loops(threading.local):
    def __init__(self) -> None:
        self.stack: List[Loop] = []


_loops = _Loops()


@contextmanager
def within_loop(lowerer: Any, parfor: Any) -> Iterator[None]:
    """While the kernel of this loop is made."""
    try:
        loop = Loop(parfor.loc.filename, parfor.loc.line)
    except AttributeError:
        loop = Loop(GENERATED, 0)
    _loops.stack.append(loop)
    try:
        yield
    finally:
        _loops.stack.pop()


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
        self._generated = False
        self._kind = ""
        self._place(loc)
        self._subprogram: Any = None
        self._last: Any = None

    def _place(self, loc: Any) -> None:
        name = str(getattr(self._lowerer.func_ir.func_id, "func_name", ""))
        if loc.filename == GENERATED and _loops.stack and name.startswith(_PRANGE):
            loop = _loops.stack[-1]
            self._generated, self._kind, source, self._line = True, "prange kernel", loop.path, loop.line
        elif loc.filename == GENERATED and name.startswith(_STENCIL):
            source, self._line = self._first_place(loc)
            self._generated, self._kind = True, "stencil"
        else:
            source, self._line = loc.filename, sources.def_line(loc.filename, loc.line)
        self._path = sources.path(source)

    def _first_place(self, loc: Any) -> "tuple[str, int]":
        """Of the user's statements in a function that is generated around them."""
        for _, block in sorted(self._lowerer.func_ir.blocks.items()):
            for inst in block.body:
                if inst.loc.filename != GENERATED:
                    return inst.loc.filename, inst.loc.line
        return loc.filename, loc.line

    def mark_subprogram(self, function: Any, qualname: str, *_: Any, **__: Any) -> None:
        """A function begins."""
        self._subprogram = self._last = None
        try:
            name = qualname
            if self._kind:
                name = "%s %s:%d" % (self._kind, self._path.rpartition("/")[2], self._line)
            lines = begin(self._module, self._path)
            self._subprogram = lines.subprogram(function, name, self._path, self._line)
            wrappers.remember(function.name, wrappers.Place(name, self._path, self._line))
        except Exception as error:
            self._failed(error)

    def mark_location(self, builder: Any, line: int, *_: Any, **__: Any) -> None:
        """What is built from now on comes from this line."""
        if self._subprogram is None:
            return
        try:
            builder.debug_metadata = self._location(line)
        except Exception as error:
            self._failed(error)

    def _location(self, line: int) -> Any:
        loc = self._lowerer.loc
        lines = begin(self._module, self._path)
        if loc.line < 1:
            return lines.location(self._subprogram, 0)
        filename = loc.filename
        # Arguments are stored at another line than the instruction's: the function's.
        of_function = line != loc.line or (filename == self._source and self._first <= line <= self._line)
        if of_function or (self._generated and filename == GENERATED):
            return lines.location(self._subprogram, self._line)
        path = sources.path(filename)
        scope = self._subprogram if path == self._path else lines.scope(self._subprogram, path)
        return lines.location(scope, line)

    def _failed(self, error: Exception) -> None:
        log.warn("no lines for %s: %s: %s" % (self._source, type(error).__name__, error))

    def __getattr__(self, name: str) -> Any:
        # What else Numba calls: nothing happens.
        return getattr(self._empty, name)
