"""Lines of stencils.

Numba makes a function of a stencil's kernel, and writes the reads of neighbours (`a[0, 1]`) anew: they have the
location of the block, which begins with the decorator. Here they get the line of the statement that uses them.
"""

from __future__ import annotations

from typing import Any, Tuple

from . import sources


def settle(func_ir: Any, generated: str) -> Tuple[str, int]:
    """Corrects the locations; returns file and line of the first statement of the user's."""
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
        following = body[0]
        for inst in reversed(block.body):
            if inst.loc.filename != path:
                continue
            if inst.loc.line not in head:
                following = inst.loc
            else:
                inst.loc = following
    return path, body[0].line
