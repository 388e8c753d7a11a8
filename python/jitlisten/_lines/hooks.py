"""Hooks in Numba's functions that add lines. They have no effect while lines are off."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from llvmlite import ir
from numba.core import codegen

from .. import _log
from .._numba import inlined
from .._numba.seams import Hooks, Original, Seam, run_safely
from . import metadata, phis, stencils, verified, wrappers
from .builder import LineBuilder, install_builder, is_head, within_loop
from .patches import KEY, PART


def _init_lowerer(original: Original, lowerer: Any, *args: Any, **kwargs: Any) -> None:
    """Replaces Numba's empty builder with ours."""
    original(lowerer, *args, **kwargs)
    if KEY.was_on_for(lowerer.library):
        install_builder(lowerer)


def _lower_object_mode(original: Original, lowerer: Any, inst: Any) -> None:
    """Marks the location, which Numba does not do in object mode."""
    if isinstance(lowerer.debuginfo, LineBuilder):
        lowerer.debuginfo.mark_location(lowerer.builder, lowerer.loc.line)
    original(lowerer, inst)


def _serialize(original: Original, api: Any, obj: Any) -> Any:
    """Pickles an exception's arguments without our metadata, because their whole LLVM module is pickled with them."""
    if metadata.lines_of(api.module) is None or not _holds_values(obj):
        return original(api, obj)
    with metadata.detached(api.module):
        return original(api, obj)


def _holds_values(constant: Any) -> bool:
    if isinstance(constant, tuple):
        return any(map(_holds_values, constant))
    return isinstance(constant, ir.Value)


def _suspend_locations(original: Original, builder: Any) -> Any:
    """Lets reference-counting code keep the line of the statement that causes it."""
    location = builder.debug_metadata
    has_line = type(location) is metadata.Node and not is_head(location)
    return _NO_SUSPENSION if has_line else original(builder)


_NO_SUSPENSION = nullcontext()


def _strip_phis(original: Original, strip_pass: Any, func_ir: Any) -> Any:
    """Corrects the lines of phi copies at the end of a branch, which may belong to another branch."""
    consequence = "copies at joins have other lines"
    joins = run_safely(consequence, phis.find_joins, func_ir) if PART.is_active() else None
    result = original(strip_pass, func_ir)
    if joins is not None:
        run_safely(consequence, phis.relocate, joins, result)
    return result


def _compile_kernel(original: Original, lowerer: Any, parfor: Any, *args: Any, **kwargs: Any) -> Any:
    """Remembers the parallel loop while its kernel is compiled."""
    with within_loop(lowerer, parfor):
        return original(lowerer, parfor, *args, **kwargs)


def _parallel_stencil(original: Original, stencil_pass: Any, label: Any, in_args: Any, *rest: Any) -> Any:
    """Shows the loop of a stencil at the call of the stencil, instead of at the argument."""
    _out_arr, _stencil_ir, _index_offsets, target = rest[:4]
    result = original(stencil_pass, label, in_args, *rest)
    if PART.is_active():
        consequence = "a stencil has other lines"
        run_safely(consequence, stencils.relocate, result, in_args[0], target, stencil_pass.func_ir)
    return result


def _add_module(original: Original, library: Any, ir_module: Any) -> Any:
    """Describes wrappers, returns and calls without a location, and passes the module to LLVM with its lines."""
    has_lines = KEY.was_on_for(library) or metadata.lines_of(ir_module) is not None
    if not has_lines or isinstance(library.codegen, codegen.AOTCPUCodegen):
        return original(library, ir_module)
    if wrappers.complete_module(ir_module) and verified.may_have_lines(ir_module):
        try:
            with verified.without_verification(), metadata.written(ir_module):
                return original(library, ir_module)
        except RuntimeError as error:
            # LLVM cannot parse the module, or rejects it. Nothing has been added to it yet.
            _log.warn("no lines for %s: %s" % (ir_module.name, error))
    return original(library, ir_module)


def all_hooks() -> Hooks:
    return {
        **KEY.hooks(),
        **inlined.hooks(PART.is_active),
        Seam.INIT_LOWERER: _init_lowerer,
        Seam.LOWER_OBJECT_MODE: _lower_object_mode,
        Seam.SERIALIZE: _serialize,
        Seam.SUSPEND_LOCATIONS: _suspend_locations,
        Seam.STRIP_PHIS: _strip_phis,
        Seam.COMPILE_KERNEL: _compile_kernel,
        Seam.PARALLEL_STENCIL: _parallel_stencil,
        Seam.ADD_MODULE: _add_module,
        Seam.FORMAT_METADATA: metadata.stringify_metadata,
        Seam.FORMAT_BLOCK: metadata.format_block,
    }
