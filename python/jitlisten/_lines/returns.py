"""Lines of a function's first and last instructions.

LLVM merges the returns of a function, and drops the line if they have different ones. Therefore all returns get the
same line from the start: the line of the only `return` statement, or else the line of `def`.

The first block allocates variables for statements anywhere in the function. Its instructions have no line, so that
debuggers stop at the first statement.
"""

from __future__ import annotations

from typing import Any, List

from llvmlite.ir import instructions

# Number of arguments for results and exceptions (`callconv.py`).
_RESULT_ARGUMENTS = 2


def correct_lines(function: Any, head: Any) -> None:
    """Corrects the lines before a function is passed to LLVM. `head` is the location of `def`."""
    for instruction in function.entry_basic_block.instructions:
        instruction.metadata.pop("dbg", None)
    results = function.args[:_RESULT_ARGUMENTS]
    returns: List[Any] = []
    stores: List[Any] = []
    for block in function.blocks:
        for instruction in block.instructions:
            if isinstance(instruction, instructions.Ret):
                returns.append(instruction)
            elif isinstance(instruction, instructions.StoreInstr) and any(
                instruction.operands[1] is argument for argument in results
            ):
                stores.append(instruction)
    if len(returns) < 2:
        return
    locations = {store.metadata.get("dbg") for store in stores if store.operands[1] is function.args[0]}
    location = locations.pop() if len(locations) == 1 else None
    for instruction in returns + stores:
        if "dbg" in instruction.metadata or isinstance(instruction, instructions.Ret):
            instruction.metadata["dbg"] = location or head
