"""Coverage hooks in Numba's functions."""

from __future__ import annotations

from typing import Any, List, Optional, Set

from numba.core import ir
from numba.parfors.parfor import Parfor

from .._numba import inlined, locations
from .._numba.seams import Hooks, Original, Seam, run_safely
from . import lowering, marks, plan, unmeasured
from .patches import KEY, PART, TOO_EARLY

# Stores


def _lower_block(original: Original, lowerer: Any, block: Any) -> None:
    attributes = lowerer.__dict__
    if "_jitlisten_coverage" not in attributes:
        attributes["_jitlisten_coverage"] = _begin_lowering(lowerer)
    function_lowering = attributes["_jitlisten_coverage"]
    if function_lowering is None:
        original(lowerer, block)
        return
    function_lowering.begin_block(block)
    original(lowerer, block)
    function_lowering.end_block()


def _begin_lowering(lowerer: Any) -> Any:
    # After a failed patch, stores without a table would crash the program.
    if PART.failure is not None:
        return None
    if KEY.was_on_for(lowerer.library):
        return lowering.begin(lowerer)
    unmeasured.add(TOO_EARLY, lowerer)
    return None


def _lower_statement(original: Original, lowerer: Any, inst: Any) -> None:
    function_lowering = lowerer.__dict__.get("_jitlisten_coverage")
    if function_lowering is None:
        original(lowerer, inst)
        return
    function_lowering.store_before(inst)
    with function_lowering.on_edges(inst):
        original(lowerer, inst)


def _lower_parallel(original: Original, lowerer: Any, inst: Any) -> None:
    # All other statements pass through `Lower.lower_inst`.
    if isinstance(inst, Parfor):
        _lower_statement(original, lowerer, inst)
    else:
        original(lowerer, inst)


def _add_module(original: Original, library: Any, ir_module: Any) -> Any:
    """Gives the mark table of a function its symbol name."""
    lowering.finish(ir_module)
    return original(library, ir_module)


# Code in Numba's cache


def _load_object(original: Original, library_type: Any, codegen: Any, state: Any) -> Any:
    data = state[2]
    for part in data if isinstance(data, tuple) else (data,):
        marks.register_all(part)
    return original(library_type, codegen, state)


def _load_overload(original: Original, *args: Any, **kwargs: Any) -> Any:
    try:
        return original(*args, **kwargs)
    except marks.Stale:
        return None


# Lines that did not run


def _strip_phis(original: Original, strip_pass: Any, func_ir: Any) -> Any:
    """Removes the line from phi copies at the end of a branch, because the line of the value may not have run."""
    original_statements = {id(statement) for block in func_ir.blocks.values() for statement in block.body}
    stripped = original(strip_pass, func_ir)
    run_safely("lines of another branch count as run", _hide_copies, stripped, original_statements)
    return stripped


def _hide_copies(func_ir: Any, original_statements: Set[int]) -> None:
    for block in func_ir.blocks.values():
        for statement in block.body:
            if id(statement) not in original_statements:
                locations.measure_at(statement, statement.loc.with_lineno(0))


def _hoist(original: Original, *args: Any, **kwargs: Any) -> bool:
    """Prevents hoisting, so that constants stay in their branch."""
    return False


def _fuse(original: Original, equiv_set: Any, parfor1: Any, parfor2: Any, *args: Any, **kwargs: Any) -> Any:
    """Prevents the fusion of the user's loops."""
    if _is_loop(parfor1) or _is_loop(parfor2):
        return None, None
    return original(equiv_set, parfor1, parfor2, *args, **kwargs)


def _is_loop(parfor: Any) -> bool:
    return any(pattern[0] == "prange" for pattern in parfor.patterns)


# Origin of statements


def _compile_kernel(original: Original, lowerer: Any, parfor: Any, *args: Any, **kwargs: Any) -> Any:
    with lowering.within_loop(lowerer, parfor):
        return original(lowerer, parfor, *args, **kwargs)


def _init_lifted(original: Original, lifted: Any, func_ir: Any, *args: Any, **kwargs: Any) -> None:
    """Marks a part of a function, which has no entry and no exit."""
    original(lifted, func_ir, *args, **kwargs)
    setattr(lifted.func_ir, plan.PART, (None, None))


def _init_stencil(original: Original, stencil: Any, kernel_ir: Any, *args: Any, **kwargs: Any) -> None:
    original(stencil, kernel_ir, *args, **kwargs)
    lowering.stencils[str(stencil.id)] = kernel_ir.func_id


def _parallel_stencil(
    original: Original, stencil_pass: Any, label: int, in_args: Any, out_arr: Any, stencil_ir: Any, *rest: Any
) -> Any:
    consequence = "a stencil is not measured"
    _index_offsets, target, _return_type, stencil = rest[:4]
    returns = run_safely(consequence, _mark_stencil, stencil_ir, stencil, target)
    nodes = original(stencil_pass, label, in_args, out_arr, stencil_ir, *rest)
    run_safely(consequence, _mark_result, nodes, returns)
    return nodes


def _mark_stencil(stencil_ir: Any, stencil: Any, target: Any) -> List[Any]:
    """Marks the loop as a call, because it is a copy of the stencil's kernel with copied locations. Returns the
    locations of `return`."""
    call = inlined.call_of_ir(stencil.kernel_ir, locations.own_location(target.loc))
    inlined.mark_call(stencil_ir.blocks.values(), call)
    last_statements = [block.body[-1] for block in stencil_ir.blocks.values()]
    return [statement.loc for statement in last_statements if isinstance(statement, ir.Return)]


def _mark_result(nodes: Any, returns: Optional[List[Any]]) -> None:
    """Makes the assignment to the result count as the only `return` of the stencil."""
    if returns is None or len(returns) != 1:
        return
    for node in nodes:
        body = node.loop_body if isinstance(node, Parfor) else {}
        for statement in body[max(body)].body if body else ():
            if isinstance(statement, ir.SetItem):
                locations.measure_at(statement, returns[0])


def all_hooks() -> Hooks:
    return {
        **KEY.hooks(),
        **inlined.hooks(PART.is_active),
        Seam.LOAD_OVERLOAD: _load_overload,
        Seam.LOAD_OBJECT: _load_object,
        Seam.ADD_MODULE: _add_module,
        Seam.LOWER_BLOCK: _lower_block,
        Seam.LOWER_STATEMENT: _lower_statement,
        Seam.LOWER_OBJECT_MODE: _lower_statement,
        Seam.LOWER_PARALLEL: _lower_parallel,
        Seam.STRIP_PHIS: _strip_phis,
        Seam.INIT_LIFTED: _init_lifted,
        Seam.COMPILE_KERNEL: _compile_kernel,
        Seam.HOIST: _hoist,
        Seam.FUSE: _fuse,
        Seam.INIT_STENCIL: _init_stencil,
        Seam.PARALLEL_STENCIL: _parallel_stencil,
    }
