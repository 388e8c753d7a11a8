"""The lines of a function's first and last instructions.

LLVM makes one of the returns of a function, and gives it no line if they have several. So they get one line from the
start: that of the only `return` statement, or else that of `def`.

The first block makes room for variables, for statements anywhere in the function: its instructions have no line, so
that debuggers stop at the first statement.
"""

from __future__ import annotations

from typing import Any, List

from llvmlite.ir import instructions

# Where results and exceptions are stored (`callconv.py`).
_RESULTS = 2


def settle(function: Any, head: Any) -> None:
    """Before a function goes to LLVM. `head` is the location of `def`."""
    for instruction in function.entry_basic_block.instructions:
        instruction.metadata.pop("dbg", None)
    results = function.args[:_RESULTS]
    returns: List[Any] = []
    stores: List[Any] = []
    for block in function.blocks:
        for instruction in block.instructions:
            if isinstance(instruction, instructions.Ret):
                returns.append(instruction)
            elif isinstance(instruction, instructions.StoreInstr) and any(
                instruction.operands[1] is one for one in results
            ):
                stores.append(instruction)
    if len(returns) < 2:
        return
    values = {store.metadata.get("dbg") for store in stores if store.operands[1] is function.args[0]}
    location = values.pop() if len(values) == 1 else None
    for instruction in returns + stores:
        if "dbg" in instruction.metadata or isinstance(instruction, instructions.Ret):
            instruction.metadata["dbg"] = location or head
