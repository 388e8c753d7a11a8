"""The lines of phi copies.

Where branches join, Numba copies each variable at the end of every branch that leads there. Its copy has the location
where the value was assigned. That is right if it was assigned in this branch; if not, the location is of a branch not
taken. Then the copy is shown at the join.
"""

from __future__ import annotations

from typing import Any, Dict, Set, Tuple

from numba.core import ir

from .locations import show_at

# By the name of the variable that the phi assigns; and every statement there was.
Joins = Tuple[Dict[str, Any], Set[int]]


def joins(func_ir: Any) -> Joins:
    """The location behind the phis of each block."""
    found: Dict[str, Any] = {}
    known: Set[int] = set()
    for block in func_ir.blocks.values():
        targets = []
        for inst in block.body:
            known.add(id(inst))
            if _is_phi(inst):
                targets.append(inst.target.name)
            elif targets:
                found.update(dict.fromkeys(targets, inst.loc))
                targets = []
    return found, known


def relocate(before: Joins, func_ir: Any) -> None:
    """After the phis have become copies."""
    found, known = before
    for block in func_ir.blocks.values():
        assigned: Set[str] = set()
        for inst in block.body:
            if id(inst) in known:
                if isinstance(inst, ir.Assign):
                    assigned.add(inst.target.name)
            elif isinstance(inst.value, ir.Var) and inst.value.name not in assigned and inst.target.name in found:
                show_at(inst, found[inst.target.name])


def _is_phi(inst: Any) -> bool:
    return isinstance(inst, ir.Assign) and isinstance(inst.value, ir.Expr) and inst.value.op == "phi"
