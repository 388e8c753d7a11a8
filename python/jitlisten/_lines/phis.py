"""Lines of phi copies.

Where branches join, Numba copies each variable at the end of every branch that leads there. The copy has the location
where the value was assigned. That location is right if the value was assigned in this branch. Otherwise it belongs to a
branch that was not taken, so the copy is shown at the join instead.
"""

from __future__ import annotations

from typing import Any, Dict, Set, Tuple

from numba.core import ir

from .._numba.locations import show_at

# Location after the phis, by name of the assigned variable; and identities of all statements before the change.
Joins = Tuple[Dict[str, Any], Set[int]]


def find_joins(func_ir: Any) -> Joins:
    """Returns the location after the phis of each block."""
    location_by_target: Dict[str, Any] = {}
    statement_ids: Set[int] = set()
    for block in func_ir.blocks.values():
        targets = []
        for inst in block.body:
            statement_ids.add(id(inst))
            if _is_phi(inst):
                targets.append(inst.target.name)
            elif targets:
                location_by_target.update(dict.fromkeys(targets, inst.loc))
                targets = []
    return location_by_target, statement_ids


def relocate(joins: Joins, func_ir: Any) -> None:
    """Corrects the locations after phis have become copies."""
    location_by_target, statement_ids = joins
    for block in func_ir.blocks.values():
        assigned: Set[str] = set()
        for inst in block.body:
            if id(inst) in statement_ids:
                if isinstance(inst, ir.Assign):
                    assigned.add(inst.target.name)
            elif (
                isinstance(inst.value, ir.Var)
                and inst.value.name not in assigned
                and inst.target.name in location_by_target
            ):
                show_at(inst, location_by_target[inst.target.name])


def _is_phi(inst: Any) -> bool:
    return isinstance(inst, ir.Assign) and isinstance(inst.value, ir.Expr) and inst.value.op == "phi"
