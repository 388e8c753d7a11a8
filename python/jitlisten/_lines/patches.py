"""Replaced functions of Numba.

| replaced                                         | purpose |
| ------------------------------------------------ | --- |
| `lowering.BaseLower.__init__`                    | replaces Numba's empty builder by ours |
| `pylowering.PyLower.lower_inst`                  | object mode does not mark locations itself |
| `parfor_lowering._create_gufunc_for_parfor_body` | finds the loop of a generated kernel |
| `stencilparfor.StencilPass._mk_stencil_parfor`   | the loop of a stencil has the location of its argument |
| `inline_closurecall.InlineWorker.inline_ir`, `.inline_closure_call` | calls that Numba inlines itself |
| `ir.Loc.__getstate__`, `__copy__`, `__deepcopy__` | added: locations carry our attributes |
| `pythonapi.PythonAPI.serialize_object`           | an exception's arguments are pickled with their module |
| `debuginfo.suspend_emission`                     | reference counting keeps the line that causes it |
| `typed_passes.PreLowerStripPhis._strip_phi_nodes` | copies at the end of a branch have the line of another branch |
| `codegen.CPUCodeLibrary.add_ir_module`           | wrappers; returns; calls without a location |
| llvmlite's `_HasMetadata._stringify_metadata`, `Block.descr` | the text of a module has lines only for LLVM |
| `codegen.CodeLibrary.__init__`, `caching.Cache.save_overload`, `codegen.CPUCodegen.magic_tuple` | cached code |

Cached code with and without lines is kept apart (cache_keys.py).

Replacements are permanent, and have no effect while lines are off. Another thread may be compiling when lines are
enabled or disabled, and so may the same thread: `jitlisten attach` runs between any two of its instructions. Each
library of Numba, which is one compiled function and its wrappers, therefore keeps the state in which it was created,
and so does its entry in the cache. No lock is necessary.

`flags` are unchanged: debug flags change the code, and are part of every symbol's name.
"""

from __future__ import annotations

import functools
import os
import sys
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional

from . import log, versions
from .cache_keys import CacheKey
from .imports import Watch

# Part of the key of cached code. Change the number when names, locations or hashes change: a cache would keep the old
# ones.
MARKER = "jitlisten-lines-4"


NOT_INSTALLED, NOT_IMPORTED = "not installed", "numba has not been imported"


class _State:
    def __init__(self) -> None:
        self.is_requested = False
        self.watch: Optional[Watch] = None
        self.failure: Optional[str] = None
        # Completed patches by module name: empty until all patches of the module are done. A module is patched once.
        self.patched: Dict[str, List[str]] = {}


_state = _State()


def install() -> None:
    """Adds lines from now on, or once Numba is imported. Further calls have no effect."""
    if _state.is_requested:
        return
    # A failed patch is not repeated.
    if all(_state.patched.values()):
        _state.failure = None
    _state.is_requested = True
    remaining = [name for name in _PATCHES if name not in _state.patched]
    watch = _state.watch = Watch({name: functools.partial(_patch, _PATCHES[name]) for name in remaining})
    watch.start()


def remove() -> None:
    """Stops adding lines to functions whose library is created from now on."""
    _state.is_requested = False
    _stop_watching()


def _stop_watching() -> None:
    watch, _state.watch = _state.watch, None
    if watch is not None:
        watch.stop()


def reason() -> Optional[str]:
    """Returns the reason why there are no lines; `None` if there are lines."""
    watch = _state.watch
    if watch is not None:
        watch.check_imported()
    if _state.failure is not None:
        return _state.failure
    if not _state.is_requested:
        return NOT_INSTALLED
    if _is_active():
        return None
    return NOT_IMPORTED


def _is_active() -> bool:
    return _state.is_requested and _state.failure is None and all(map(_state.patched.get, _REQUIRED))


_cache_key = CacheKey("lines", _is_active)


def _patch(patch: Callable[[ModuleType], None], module: ModuleType) -> None:
    if _state.failure is not None or not _state.is_requested:
        return
    try:
        version = versions.numba_version(sys.modules.get("numba"))
        _state.failure = versions.unsupported_reason(version, os.environ.get("JITLISTEN_LINES") == "force")
        # Another thread may be patching the same module.
        claim: List[str] = []
        if _state.failure is None and _state.patched.setdefault(module.__name__, claim) is claim:
            patch(module)
            claim.append("complete")
            if module.__name__ in _REQUIRED and _is_active():
                log.info("lines for numba %s" % version)
    except Exception as error:
        _state.failure = "%s: %s: %s" % (module.__name__, type(error).__name__, error)
    if _state.failure is not None:
        _stop_watching()
        log.warn("no lines: " + _state.failure)


def _replace(owner: Any, name: str, make_wrapper: Callable[[Any], Any]) -> None:
    original = owner.__dict__[name]
    setattr(owner, name, functools.wraps(original)(make_wrapper(original)))


def _add(owner: Any, name: str, method: Callable[..., Any]) -> None:
    if name in owner.__dict__:
        raise RuntimeError("%s has %s of its own" % (owner.__name__, name))
    setattr(owner, name, method)


def _run_safely(consequence: str, function: Callable[..., Any], *args: Any) -> Any:
    """Returns the function's result; `None` if it fails, which only costs lines."""
    try:
        return function(*args)
    except Exception as error:
        log.warn("%s: %s: %s" % (consequence, type(error).__name__, error))
        return None


def _patch_lowering(module: Any) -> None:
    # Modules that import Numba and llvmlite are imported when those are.
    from . import builder

    def make_wrapper(original: Callable[..., None]) -> Callable[..., None]:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if _cache_key.was_on_for(self.library):
                builder.install_builder(self)

        return __init__

    _replace(module.BaseLower, "__init__", make_wrapper)


def _patch_pylowering(module: Any) -> None:
    from . import builder

    def make_wrapper(original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        def lower_inst(self: Any, inst: Any) -> None:
            if isinstance(self.debuginfo, builder.LineBuilder):
                self.debuginfo.mark_location(self.builder, self.loc.line)
            original(self, inst)

        return lower_inst

    _replace(module.PyLower, "lower_inst", make_wrapper)


def _patch_pythonapi(module: Any) -> None:
    from llvmlite import ir

    from . import metadata

    def holds_values(constant: Any) -> bool:
        if isinstance(constant, tuple):
            return any(map(holds_values, constant))
        return isinstance(constant, ir.Value)

    def make_wrapper(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def serialize_object(self: Any, obj: Any) -> Any:
            if metadata.lines_of(self.module) is None or not holds_values(obj):
                return original(self, obj)
            with metadata.detached(self.module):
                return original(self, obj)

        return serialize_object

    _replace(module.PythonAPI, "serialize_object", make_wrapper)


def _patch_debuginfo(module: Any) -> None:
    from contextlib import nullcontext

    from . import builder, metadata

    no_suspension = nullcontext()

    def make_wrapper(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def suspend_emission(llvm_builder: Any) -> Any:
            location = llvm_builder.debug_metadata
            return (
                no_suspension
                if type(location) is metadata.Node and not builder.is_head(location)
                else original(llvm_builder)
            )

        return suspend_emission

    _replace(module, "suspend_emission", make_wrapper)


def _patch_typed_passes(module: Any) -> None:
    from . import phis

    def make_wrapper(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def _strip_phi_nodes(self: Any, func_ir: Any) -> Any:
            joins = _run_safely("copies at joins have other lines", phis.find_joins, func_ir) if _is_active() else None
            result = original(self, func_ir)
            if joins is not None:
                _run_safely("copies at joins have other lines", phis.relocate, joins, result)
            return result

        return _strip_phi_nodes

    _replace(module.PreLowerStripPhis, "_strip_phi_nodes", make_wrapper)


def _patch_parfor_lowering(module: Any) -> None:
    from . import builder

    def make_wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def _create_gufunc_for_parfor_body(lowerer: Any, parfor: Any, *args: Any, **kwargs: Any) -> Any:
            with builder.within_loop(lowerer, parfor):
                return original(lowerer, parfor, *args, **kwargs)

        return _create_gufunc_for_parfor_body

    _replace(module, "_create_gufunc_for_parfor_body", make_wrapper)


def _patch_stencilparfor(module: Any) -> None:
    from . import stencils

    def make_wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def _mk_stencil_parfor(
            self: Any, label: Any, in_args: Any, out_arr: Any, ir: Any, offsets: Any, target: Any, *args: Any
        ) -> Any:
            result = original(self, label, in_args, out_arr, ir, offsets, target, *args)
            if _is_active():
                _run_safely("a stencil has other lines", stencils.relocate, result, in_args[0], target, self.func_ir)
            return result

        return _mk_stencil_parfor

    _replace(module.StencilPass, "_mk_stencil_parfor", make_wrapper)


def _patch_inlining(module: Any) -> None:
    from numba.core.ir import Loc

    from . import inlined, locations

    def mark_inlined(
        block: Any, index: int, describe: Callable[[Any], Any], run: Callable[[], Any], new_blocks: Callable[[Any], Any]
    ) -> Any:
        def find_call_site() -> Any:
            return locations.source_location(block.body[index].loc)

        def mark_blocks() -> None:
            inlined.mark_call(new_blocks(result), describe(call_site))

        call_site = _run_safely("an inlined call has no frame", find_call_site) if _is_active() else None
        result = run()
        if call_site is not None:
            _run_safely("an inlined call has no frame", mark_blocks)
        return result

    def make_worker(original: Callable[..., Any]) -> Callable[..., Any]:

        def inline_ir(
            self: Any, caller_ir: Any, block: Any, i: int, callee_ir: Any, *args: Any, **kwargs: Any
        ) -> Any:
            return mark_inlined(
                block,
                i,
                functools.partial(inlined.call_of_ir, callee_ir),
                lambda: original(self, caller_ir, block, i, callee_ir, *args, **kwargs),
                lambda result: result[1].values(),
            )

        return inline_ir

    def make_closure(original: Callable[..., Any]) -> Callable[..., Any]:

        def inline_closure_call(
            func_ir: Any, glbls: Any, block: Any, i: int, callee: Any, *args: Any, **kwargs: Any
        ) -> Any:
            return mark_inlined(
                block,
                i,
                functools.partial(inlined.call_of_callee, callee, func_ir),
                lambda: original(func_ir, glbls, block, i, callee, *args, **kwargs),
                lambda result: result[0].values(),
            )

        return inline_closure_call

    for name, method in locations.METHODS.items():
        _add(Loc, name, method)
    _replace(module.InlineWorker, "inline_ir", make_worker)
    _replace(module, "inline_closure_call", make_closure)


def _patch_codegen(module: Any) -> None:
    from llvmlite.ir import Block
    from llvmlite.ir._utils import _HasMetadata

    from . import metadata, verified, wrappers

    def make_add(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def add_ir_module(self: Any, ir_module: Any) -> Any:
            is_ours = _cache_key.was_on_for(self) or metadata.lines_of(ir_module) is not None
            if not is_ours or isinstance(self.codegen, module.AOTCPUCodegen):
                return original(self, ir_module)
            if wrappers.complete_module(ir_module) and verified.may_have_lines(ir_module):
                try:
                    with verified.without_verification(), metadata.written(ir_module):
                        return original(self, ir_module)
                except RuntimeError as error:
                    # LLVM cannot parse the module or rejects it: nothing has been added yet.
                    log.warn("no lines for %s: %s" % (ir_module.name, error))
            return original(self, ir_module)

        return add_ir_module

    def make_magic(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def magic_tuple(self: Any) -> Any:
            magic = original(self)
            return tuple(magic) + (MARKER,) if _cache_key.is_on_for_key() else magic

        return magic_tuple

    _replace(module.CodeLibrary, "__init__", _cache_key.wrap_init)
    _replace(module.CPUCodeLibrary, "add_ir_module", make_add)
    _replace(module.CPUCodegen, "magic_tuple", make_magic)
    _replace(_HasMetadata, "_stringify_metadata", metadata.wrap_stringify_metadata)
    _replace(Block, "descr", metadata.wrap_descr)


def _patch_caching(module: Any) -> None:
    _replace(module.Cache, "save_overload", _cache_key.wrap_save)


_PATCHES = {
    "numba.core.caching": _patch_caching,
    "numba.core.codegen": _patch_codegen,
    "numba.core.debuginfo": _patch_debuginfo,
    "numba.core.inline_closurecall": _patch_inlining,
    "numba.core.lowering": _patch_lowering,
    "numba.core.pylowering": _patch_pylowering,
    "numba.core.pythonapi": _patch_pythonapi,
    "numba.core.typed_passes": _patch_typed_passes,
    "numba.parfors.parfor_lowering": _patch_parfor_lowering,
    "numba.stencils.stencilparfor": _patch_stencilparfor,
}
# Modules that `import numba` imports.
_REQUIRED = tuple(
    "numba.core." + name
    for name in ("caching", "codegen", "debuginfo", "lowering", "pylowering", "pythonapi", "typed_passes")
)
