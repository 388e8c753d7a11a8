"""Functions that Numba generates around others, and calls that have no location yet.

A wrapper inlines what it wraps, so often it is the code that runs: without a description of its own, the inlined lines
are lost. It belongs to the line of the function it is for, and is named as the native library names it: `cpython::f`,
`gufunc::f`. Those of a ufunc are a loop over its elements, and start the threads: at the function's first statement.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Iterator, NamedTuple, Optional

from llvmlite.ir import instructions

from numba.core import config

from . import log, returns
from .metadata import begin, lines_of

_UNKNOWN = "<numba>"
_KEPT = 20000

_PREFIXES = (
    ("_ZN7cpython", "cpython::"),
    ("cfunc.", "cfunc::"),
    (".kernel.", "kernel::"),
    ("__gufunc__", "gufunc::"),
    ("__ufunc__", "ufunc::"),
)
_LOOPS = ("gufunc::", "ufunc::", "kernel::")


class Place(NamedTuple):
    """Where a function is, and its name for people."""

    name: str
    linkage: str
    path: str
    line: int
    # Of its first statement, once that is known.
    statement: int = 0


_places: "OrderedDict[str, Place]" = OrderedDict()


def remember(linkage_name: str, place: Place) -> None:
    """For wrappers that come later, in modules of their own."""
    _places[linkage_name] = place
    while len(_places) > _KEPT:
        _places.popitem(last=False)


def begins(linkage_name: str, statement: int) -> None:
    """The line of a function's first statement."""
    place = _places.get(linkage_name)
    if place is not None and not place.statement:
        _places[linkage_name] = place._replace(statement=statement)


def complete(module: Any) -> bool:
    """Before a module goes to LLVM. Returns whether it has lines."""
    try:
        for function in module.functions:
            if function.blocks:
                _complete_function(module, function)
        return lines_of(module) is not None
    except Exception as error:
        log.warn("no lines for %s: %s: %s" % (module.name, type(error).__name__, error))
        return False


def _complete_function(module: Any, function: Any) -> None:
    subprogram = function.metadata.get("dbg")
    if subprogram is not None:
        lines = lines_of(module)
        if lines is not None:
            head = lines.heads.get(function.name)
            if head is not None:
                returns.settle(function, head)
            # The verifier refuses a call without a location between two described functions.
            location = lines.location(subprogram, 0)
            for block in function.blocks:
                for instruction in block.instructions:
                    if "dbg" not in instruction.metadata and isinstance(instruction, instructions.CallInstr):
                        instruction.metadata["dbg"] = location
        return
    place = _wrapped(function)
    if place is not None:
        # There are wrappers of wrappers.
        remember(function.name, place)
        lines = begin(module, place.path)
        subprogram = lines.subprogram(function, place.name, place.linkage, place.path, place.line)
        location = lines.location(subprogram, place.statement or place.line)
        for block in function.blocks:
            for instruction in block.instructions:
                instruction.metadata.setdefault("dbg", location)


def _calls(function: Any) -> Iterator[Any]:
    return (i for b in function.blocks for i in b.instructions if isinstance(i, instructions.CallInstr))


def _wrapped(function: Any) -> Optional[Place]:
    """Whom a function is a wrapper of; `None` if it is none."""
    shown = next((shown for prefix, shown in _PREFIXES if function.name.startswith(prefix)), None)
    names = [str(getattr(call.callee, "name", "")) for call in _calls(function)]
    if shown == "kernel::":
        # `.kernel.NUMBER_NAME` hands the function to Numba's threads.
        names.append(function.name.partition("_")[2])
    for name in names:
        place = _places.get(name)
        if place is not None:
            shown = shown or ""
            # Those for C are seldom on a stack.
            known = place.linkage if shown != "cfunc::" else ""
            linkage = shown + known if known else ""
            statement = place.statement if shown in _LOOPS else 0
            return place._replace(name=shown + place.name, linkage=linkage, statement=statement)
    # A kernel from the cache, or one that is compiled with debug information of Numba's.
    if shown in ("gufunc::", "ufunc::") and not config.DEBUGINFO_DEFAULT:
        return Place(shown + "kernel", function.name, _UNKNOWN, 0)
    return None

