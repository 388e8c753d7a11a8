"""Code in which stores are expensive, and marks are therefore stored in another way.

Short loops: with stores, LLVM neither vectorises them nor converts their branches to arithmetic. Marks are bits of a
local variable, and stored when the loop exits. A loop that calls a user function is only short if that function is:
another call may take long, or never return.

Frequent code: innermost loops, and functions without loops, which another loop may call. Threads that run it would
write to the same cache line at each turn. Marks are stored only if they are not set.
"""

from __future__ import annotations

import builtins
import weakref
from typing import Any, Callable, Dict, FrozenSet, List, Optional

from numba.core import ir
from numba.core.analysis import compute_cfg_from_blocks
from numba.core.dispatcher import Dispatcher

from .statements import MarkStatement

_SIMPLE_TYPES = (ir.Assign, ir.Jump, ir.Branch, ir.Del, ir.SetItem, ir.StaticSetItem, MarkStatement)
_LEAVES_FUNCTION = (ir.Return, ir.Raise, ir.StaticRaise)

_MAX_BLOCKS = 100

# Compiled functions without loops that only call short functions, or those of libraries.
_short_functions: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()


def note_length(function: Callable[..., Any], blocks: Dict[int, Any]) -> None:
    """Records whether a function is short. Its callers are compiled later."""
    values = _find_constants(blocks)
    statements = [statement for block in blocks.values() for statement in block.body]
    if not compute_cfg_from_blocks(blocks).loops() and all(
        type(statement) in _LEAVES_FUNCTION or _is_simple(statement, values) for statement in statements
    ):
        _short_functions.add(function)
    else:
        _short_functions.discard(function)


def find_short_loops(blocks: Dict[int, Any]) -> Dict[int, FrozenSet[int]]:
    """Finds short innermost loops. Maps the label of each block in one to the labels of all blocks of its loop."""
    loops = list(compute_cfg_from_blocks(blocks).loops().values())
    values = _find_constants(blocks)
    body_by_label = {}
    for loop in loops:
        body = frozenset(loop.body)
        statements = [statement for label in body for statement in blocks[label].body]
        if _is_innermost(loop, loops) and all(_is_simple(statement, values) for statement in statements):
            body_by_label.update(dict.fromkeys(body, body))
    return body_by_label


def find_frequent(blocks: Dict[int, Any]) -> FrozenSet[int]:
    """Finds the blocks that may run most often: those of innermost loops, or of a function without loops. Returns
    nothing for a large function, which would take long to compile."""
    if len(blocks) > _MAX_BLOCKS:
        return frozenset()
    loops = list(compute_cfg_from_blocks(blocks).loops().values())
    labels = [label for loop in loops if _is_innermost(loop, loops) for label in loop.body]
    return frozenset(labels if loops else blocks)


def _is_innermost(loop: Any, loops: List[Any]) -> bool:
    return not any(other.header in loop.body for other in loops if other is not loop)


def _find_constants(blocks: Dict[int, Any]) -> Dict[str, Any]:
    """Returns the values of variables that hold known functions and modules."""
    value_by_name: Dict[str, Any] = {}
    for _, block in sorted(blocks.items()):
        for statement in block.body:
            if not isinstance(statement, ir.Assign):
                continue
            value = statement.value
            if isinstance(value, (ir.Global, ir.FreeVar)):
                value_by_name[statement.target.name] = value.value
            elif isinstance(value, ir.Var):
                value_by_name[statement.target.name] = value_by_name.get(value.name)
            elif isinstance(value, ir.Expr) and value.op == "getattr":
                base = value_by_name.get(value.value.name)
                value_by_name[statement.target.name] = getattr(base, value.attr, None) if base is not None else None
    return value_by_name


def _is_simple(statement: Any, values: Dict[str, Any]) -> bool:
    if type(statement) not in _SIMPLE_TYPES:
        return False
    value = getattr(statement, "value", None) if isinstance(statement, ir.Assign) else None
    if isinstance(value, ir.Yield):
        return False
    if not (isinstance(value, ir.Expr) and value.op == "call"):
        return True
    function = values.get(value.func.name)
    return function.py_func in _short_functions if isinstance(function, Dispatcher) else _is_library_function(function)


def _is_library_function(function: Optional[Any]) -> bool:
    module = str(getattr(function, "__module__", None) or type(function).__module__)
    is_builtin = getattr(builtins, str(getattr(function, "__name__", "")), None) is function and function is not None
    return is_builtin or (function is not None and module.split(".")[0] in ("math", "cmath", "numpy"))
