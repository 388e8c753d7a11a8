"""Lines of stencils.

In parallel code, Numba makes a loop of the call of a stencil, and gives it the location of the argument: that of the
function's head, often. Here it is shown at the call.

Numba makes a function of a stencil's kernel, and writes the reads of neighbours (`a[0, 1]`) anew: they have the
location of the block, which begins with the decorator. Here they are shown at the statement that uses them.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Tuple

from . import sources
from .locations import show_at


def relocate(statements: Iterable[Any], argument: Any, target: Any, func_ir: Any) -> None:
    """Before a loop and what prepares it take the place of the call that assigns to `target`."""
    everything = (inst for block in func_ir.blocks.values() for inst in block.body)
    call = next((inst.loc for inst in everything if getattr(inst, "target", None) is target), None)
    if call is None:
        return
    for inst in statements:
        show_at(inst, call)
        if hasattr(inst, "loop_body"):
            for first in inst.init_block.body:
                show_at(first, call)
            for block in inst.loop_body.values():
                _follow(block, call, lambda loc: loc.line < 1 or loc == argument.loc)


def settle(func_ir: Any, generated: str) -> Tuple[str, int]:
    """Corrects the lines; returns file and line of the first statement of the user's."""
    statements = [inst for _, block in sorted(func_ir.blocks.items()) for inst in block.body]
    users = [inst.loc for inst in statements if inst.loc.filename != generated]
    if not users:
        return generated, func_ir.loc.line
    path, first = users[0].filename, min(loc.line for loc in users if loc.filename == users[0].filename)
    head = range(first, sources.def_line(path, first) + 1)
    body = [loc for loc in users if loc.filename == path and loc.line not in head]
    if not body:
        return path, first
    for block in func_ir.blocks.values():
        _follow(block, body[0], lambda loc: loc.filename == path and loc.line in head)
    return path, body[0].line


def _follow(block: Any, last: Any, is_lost: Callable[[Any], bool]) -> None:
    """Shows the statements with such locations at the next one that has another."""
    for inst in reversed(block.body):
        if is_lost(inst.loc):
            show_at(inst, last)
        else:
            last = inst.loc
