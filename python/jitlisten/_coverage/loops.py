"""Innermost loops whose marks are kept in registers, and stored when the program leaves the loop.

A store in a short loop costs most: LLVM neither turns its branches into arithmetic nor vectorises it, and threads
that run it write to the
same cache line. There, a mark is a local variable. Not in loops that call functions of the user's: those may take
long, or never return.
"""

from __future__ import annotations

import builtins
from typing import Any, Dict, FrozenSet, Optional

from numba.core import ir
from numba.core.analysis import compute_cfg_from_blocks


def find(blocks: Dict[int, Any]) -> Dict[int, FrozenSet[int]]:
    """By label of a block: all blocks of its loop."""
    loops = list(compute_cfg_from_blocks(blocks).loops().values())
    values = _values(blocks)
    found = {}
    for loop in loops:
        body = frozenset(loop.body)
        is_innermost = not any(other.header in body for other in loops if other is not loop)
        if is_innermost and all(_is_short(statement, values) for label in body for statement in blocks[label].body):
            found.update(dict.fromkeys(body, body))
    return found


def _values(blocks: Dict[int, Any]) -> Dict[str, Any]:
    """What variables hold, where that is known: functions and modules."""
    found: Dict[str, Any] = {}
    for _, block in sorted(blocks.items()):
        for statement in block.body:
            if not isinstance(statement, ir.Assign):
                continue
            value = statement.value
            if isinstance(value, (ir.Global, ir.FreeVar)):
                found[statement.target.name] = value.value
            elif isinstance(value, ir.Var):
                found[statement.target.name] = found.get(value.name)
            elif isinstance(value, ir.Expr) and value.op == "getattr":
                base = found.get(value.value.name)
                found[statement.target.name] = getattr(base, value.attr, None) if base is not None else None
    return found


def _is_short(statement: Any, values: Dict[str, Any]) -> bool:
    if type(statement) not in (ir.Assign, ir.Jump, ir.Branch, ir.Del, ir.SetItem, ir.StaticSetItem):
        return False
    value = getattr(statement, "value", None) if isinstance(statement, ir.Assign) else None
    if isinstance(value, ir.Yield):
        return False
    return not (isinstance(value, ir.Expr) and value.op == "call") or _is_known(values.get(value.func.name))


def _is_known(function: Optional[Any]) -> bool:
    module = str(getattr(function, "__module__", None) or type(function).__module__)
    is_builtin = getattr(builtins, str(getattr(function, "__name__", "")), None) is function and function is not None
    return is_builtin or (function is not None and module.split(".")[0] in ("math", "cmath", "numpy"))
