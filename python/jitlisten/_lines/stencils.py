"""Lines of stencils.

In parallel code, Numba replaces the call of a stencil by a loop with the location of the argument, which is often that
of the function's head. Here the loop is shown at the call.

Numba also turns a stencil's kernel into a function, and rewrites the reads of neighbours (`a[0, 1]`). The rewritten
reads have the location of the block, which begins with the decorator. Here they are shown at the statement that uses
the values.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Tuple

from .._numba.locations import show_at
from . import sources


def relocate(statements: Iterable[Any], argument: Any, target: Any, func_ir: Any) -> None:
    """Corrects a loop and its set-up statements, before they replace the call that assigns to `target`."""
    instructions = (inst for block in func_ir.blocks.values() for inst in block.body)
    call = next((inst.loc for inst in instructions if getattr(inst, "target", None) is target), None)
    if call is None:
        return
    for inst in statements:
        show_at(inst, call)
        if hasattr(inst, "loop_body"):
            for statement in inst.init_block.body:
                show_at(statement, call)
            for block in inst.loop_body.values():
                _show_at_next(block, call, lambda loc: loc.line < 1 or loc == argument.loc)


def correct_lines(func_ir: Any, generated: str) -> Tuple[str, int]:
    """Corrects the lines; returns file and line of the user's first statement."""
    statements = [inst for _, block in sorted(func_ir.blocks.items()) for inst in block.body]
    user_locations = [inst.loc for inst in statements if inst.loc.filename != generated]
    if not user_locations:
        return generated, func_ir.loc.line
    path = user_locations[0].filename
    first = min(loc.line for loc in user_locations if loc.filename == path)
    head = range(first, sources.def_line(path, first) + 1)
    body = [loc for loc in user_locations if loc.filename == path and loc.line not in head]
    if not body:
        return path, first
    for block in func_ir.blocks.values():
        _show_at_next(block, body[0], lambda loc: loc.filename == path and loc.line in head)
    return path, body[0].line


def _show_at_next(block: Any, next_location: Any, is_wrong: Callable[[Any], bool]) -> None:
    """Shows statements with wrong locations at the next statement with a right one."""
    for inst in reversed(block.body):
        if is_wrong(inst.loc):
            show_at(inst, next_location)
        else:
            next_location = inst.loc
