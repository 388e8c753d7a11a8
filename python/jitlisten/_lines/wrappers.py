"""Functions that Numba generates around others, and calls without a location.

A wrapper inlines the function that it wraps, so it is often the code that runs. Without its own description, the
inlined lines would be lost. A wrapper has the line of the wrapped function, and is named as the native library names
it:
`cpython::f`, `gufunc::f`. Wrappers of a ufunc loop over its elements and start the threads; they are shown at the
function's first statement.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Iterator, NamedTuple, Optional

from llvmlite.ir import instructions
from numba.core import config

from .. import _log
from . import returns
from .metadata import ensure_lines, lines_of

_UNKNOWN = "<numba>"
_MAX_FUNCTIONS = 20000

_PREFIXES = (
    ("_ZN7cpython", "cpython::"),
    ("cfunc.", "cfunc::"),
    (".kernel.", "kernel::"),
    ("__gufunc__", "gufunc::"),
    ("__ufunc__", "ufunc::"),
)
_LOOPS = ("gufunc::", "ufunc::", "kernel::")


class WrappedFunction(NamedTuple):
    """Location and display name of a wrapped function."""

    name: str
    linkage: str
    path: str
    line: int
    # Line of the function's first statement; 0 until it is known.
    statement: int = 0


_functions: "OrderedDict[str, WrappedFunction]" = OrderedDict()


def remember(linkage_name: str, wrapped: WrappedFunction) -> None:
    """Remembers a function for its wrappers, which follow in their own modules."""
    _functions[linkage_name] = wrapped
    while len(_functions) > _MAX_FUNCTIONS:
        _functions.popitem(last=False)


def set_first_statement(linkage_name: str, statement: int) -> None:
    """Sets the line of a function's first statement."""
    wrapped = _functions.get(linkage_name)
    if wrapped is not None and not wrapped.statement:
        _functions[linkage_name] = wrapped._replace(statement=statement)


def complete_module(module: Any) -> bool:
    """Completes the lines of a module before it is passed to LLVM. Returns true if the module has lines."""
    try:
        for function in module.functions:
            if function.blocks:
                _complete_function(module, function)
        return lines_of(module) is not None
    except Exception as error:
        _log.warn("no lines for %s: %s: %s" % (module.name, type(error).__name__, error))
        return False


def _complete_function(module: Any, function: Any) -> None:
    subprogram = function.metadata.get("dbg")
    if subprogram is not None:
        lines = lines_of(module)
        if lines is not None:
            head = lines.heads.get(function.name)
            if head is not None:
                returns.correct_lines(function, head)
            # The verifier rejects a call without a location between two described functions.
            location = lines.location(subprogram, 0)
            for block in function.blocks:
                for instruction in block.instructions:
                    if "dbg" not in instruction.metadata and isinstance(instruction, instructions.CallInstr):
                        instruction.metadata["dbg"] = location
        return
    wrapped = _find_wrapped_function(function)
    if wrapped is not None:
        # A wrapper may have wrappers, too.
        remember(function.name, wrapped)
        lines = ensure_lines(module, wrapped.path)
        subprogram = lines.subprogram(function, wrapped.name, wrapped.linkage, wrapped.path, wrapped.line)
        location = lines.location(subprogram, wrapped.statement or wrapped.line)
        for block in function.blocks:
            for instruction in block.instructions:
                instruction.metadata.setdefault("dbg", location)


def _call_instructions(function: Any) -> Iterator[Any]:
    return (
        instruction
        for block in function.blocks
        for instruction in block.instructions
        if isinstance(instruction, instructions.CallInstr)
    )


def _find_wrapped_function(function: Any) -> Optional[WrappedFunction]:
    """Returns the function that a wrapper is for; `None` if the function is not a wrapper."""
    kind = next((kind for prefix, kind in _PREFIXES if function.name.startswith(prefix)), None)
    names = [str(getattr(call.callee, "name", "")) for call in _call_instructions(function)]
    if kind == "kernel::":
        # `.kernel.NUMBER_NAME` passes the function to Numba's threads.
        names.append(function.name.partition("_")[2])
    for name in names:
        wrapped = _functions.get(name)
        if wrapped is not None:
            kind = kind or ""
            # Wrappers for C are rarely on a stack.
            base_linkage = wrapped.linkage if kind != "cfunc::" else ""
            linkage = kind + base_linkage if base_linkage else ""
            statement = wrapped.statement if kind in _LOOPS else 0
            return wrapped._replace(name=kind + wrapped.name, linkage=linkage, statement=statement)
    # This is a kernel from the cache, or one that is compiled with Numba's own debug information.
    if kind in ("gufunc::", "ufunc::") and not config.DEBUGINFO_DEFAULT:
        return WrappedFunction(kind + "kernel", function.name, _UNKNOWN, 0)
    return None
