"""Functions of Numba that are replaced while coverage is measured. Cached code with and without marks is kept apart
(`_lines/cache_keys.py`).

| replaced                                            | purpose |
| --------------------------------------------------- | --- |
| `lowering.BaseLower.lower_block`, `Lower.lower_inst` | adds the stores |
| `PyLower.lower_inst`, `ParforLower.lower_inst`     | adds the stores |
| `codegen.CPUCodeLibrary.add_ir_module`              | names the table of a function |
| `codegen.CodeLibrary.__init__`, `caching.Cache.save_overload`, `codegen.CPUCodegen.magic_tuple` | cached code |
| `codegen.JITCodeLibrary._unserialize`, `caching.Cache.load_overload` | tables of cached code with the same source |
| `typed_passes.PreLowerStripPhis._strip_phi_nodes`   | its copies get no line: the line of the value may not have run |
| `parfor_lowering._hoist_internal`, `parfor.try_fuse` | constants stay in their branch, loops stay apart |
| `parfor_lowering._create_gufunc_for_parfor_body`    | finds the loop of a generated kernel |
| `inline_closurecall.InlineWorker.inline_ir`, `.inline_closure_call`, `ir.Loc`'s copying | calls inlined by Numba |
| `stencil.StencilFunc.__init__`                      | finds the user's statements in a generated function |
| `stencilparfor.StencilPass._mk_stencil_parfor`       | replacements of `return` in a parallel stencil get its line |
| `dispatcher.LiftedCode.__init__`                    | parts of functions: no entry and no exit |
"""

from __future__ import annotations

import functools
import gc
import sys
from types import ModuleType
from typing import Any, Callable, Dict, Optional

from .. import _lines
from .._lines import versions
from .._lines.cache_keys import CacheKey
from .._lines.imports import Watch

# Part of the key of cached code. Change the number when marks or their names change.
MARKER = "jitlisten-coverage-1"
_TOO_EARLY = "compiled before coverage.py started"
# Stencils by the end of the name of the function generated around them, which contains their statements.
STENCILS: Dict[str, Any] = {}


class _State:
    watch: Optional[Watch] = None
    # True once every loaded module is patched: another thread may be compiling.
    is_ready = False
    # Reason why nothing is measured, if any.
    inactive_reason: Optional[str] = None


_state = _State()


def install() -> None:
    """Starts to measure now, or when Numba is imported. Cannot be undone."""
    if _state.watch is None:
        # Line tables patch the same modules, and their lines would describe different code.
        _lines.remove()
        _report_compiled()
        _state.watch = Watch({name: functools.partial(_patch, patch) for name, patch in _PATCHES.items()})
        _state.watch.start()
        _state.is_ready = True


def _report_compiled() -> None:
    """Reports the functions that this process has already compiled, which have no marks."""
    dispatcher = sys.modules.get("numba.core.dispatcher")
    if dispatcher is None:
        return
    from . import unmeasured

    for candidate in gc.get_objects():
        if isinstance(candidate, dispatcher.Dispatcher) and candidate.overloads:
            function = candidate.py_func
            if not str(function.__module__).startswith("numba."):
                unmeasured.add_name(_TOO_EARLY, "%s.%s" % (function.__module__, function.__qualname__))


def is_installed() -> bool:
    return _state.watch is not None


def _is_active() -> bool:
    return _state.inactive_reason is None


# A compilation that began without marks has none at all.
_cache_key = CacheKey("marks", lambda: _state.is_ready and _is_active())


def _patch(patch: Callable[[ModuleType], None], module: ModuleType) -> None:
    if not _is_active():
        return
    try:
        version = versions.numba_version(sys.modules.get("numba"))
        _state.inactive_reason = versions.unsupported_reason(version, False)
        if _is_active():
            patch(module)
    except Exception as error:
        _state.inactive_reason = "%s: %s: %s" % (module.__name__, type(error).__name__, error)
    if _state.inactive_reason is not None:
        from . import unmeasured

        unmeasured.add_all("No compiled code is measured: " + _state.inactive_reason)


def _replace(owner: Any, name: str, make_wrapper: Callable[[Any], Any]) -> None:
    original = owner.__dict__[name]
    setattr(owner, name, functools.wraps(original)(make_wrapper(original)))


# Stores


def _patch_lowering(module: Any) -> None:
    def make_block(original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        def lower_block(self: Any, block: Any) -> None:
            # Numba's modules import each other: import ours on first use.
            from . import lowering

            attributes = self.__dict__
            if "_jitlisten_coverage" not in attributes:
                # Stores without a table, after a failed patch, would crash the program.
                attributes["_jitlisten_coverage"] = _begin_lowering(self, lowering.begin) if _is_active() else None
            function_lowering = attributes["_jitlisten_coverage"]
            if function_lowering is None:
                original(self, block)
                return
            function_lowering.begin_block(block)
            original(self, block)
            function_lowering.end_block()

        return lower_block

    _replace(module.BaseLower, "lower_block", make_block)
    _replace(module.Lower, "lower_inst", _make_lower_inst)


def _begin_lowering(lowerer: Any, begin: Callable[[Any], Any]) -> Any:
    if _cache_key.was_on_for(lowerer.library):
        return begin(lowerer)
    from . import unmeasured

    unmeasured.add(_TOO_EARLY, lowerer)
    return None


def _make_lower_inst(original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    def lower_inst(self: Any, inst: Any) -> None:
        function_lowering = self.__dict__.get("_jitlisten_coverage")
        if function_lowering is None:
            original(self, inst)
            return
        function_lowering.store_before(inst)
        with function_lowering.on_edges(inst):
            original(self, inst)

    return lower_inst


def _patch_pylowering(module: Any) -> None:
    _replace(module.PyLower, "lower_inst", _make_lower_inst)


# Code in Numba's cache


def _patch_codegen(module: Any) -> None:
    from . import marks

    def make_add(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def add_ir_module(self: Any, ir_module: Any) -> Any:
            from . import lowering

            lowering.finish(ir_module)
            return original(self, ir_module)

        return add_ir_module

    def make_magic(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def magic_tuple(self: Any) -> Any:
            return tuple(original(self)) + ((MARKER,) if _cache_key.is_on_for_key() else ())

        return magic_tuple

    original_load = module.JITCodeLibrary._unserialize.__func__

    def _unserialize(cls: Any, codegen: Any, state: Any) -> Any:
        data = state[2]
        for part in data if isinstance(data, tuple) else (data,):
            marks.register_all(part)
        return original_load(cls, codegen, state)

    _replace(module.CodeLibrary, "__init__", _cache_key.wrap_init)
    _replace(module.CPUCodeLibrary, "add_ir_module", make_add)
    _replace(module.CPUCodegen, "magic_tuple", make_magic)
    module.JITCodeLibrary._unserialize = classmethod(_unserialize)


def _patch_caching(module: Any) -> None:
    from . import marks

    def make_load(original: Callable[..., Any]) -> Callable[..., Any]:
        def load_overload(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(self, *args, **kwargs)
            except marks.Stale:
                return None

        return load_overload

    _replace(module.Cache, "load_overload", make_load)
    _replace(module.Cache, "save_overload", _cache_key.wrap_save)


# Lines that did not run


def _patch_typed_passes(module: Any) -> None:
    def make_wrapper(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def _strip_phi_nodes(self: Any, func_ir: Any) -> Any:
            original_statements = {id(statement) for block in func_ir.blocks.values() for statement in block.body}
            stripped = original(self, func_ir)
            for block in stripped.blocks.values():
                for statement in block.body:
                    if id(statement) not in original_statements:
                        statement.loc = statement.loc.with_lineno(0)
            return stripped

        return _strip_phi_nodes

    _replace(module.PreLowerStripPhis, "_strip_phi_nodes", make_wrapper)


def _patch_parfor_lowering(module: Any) -> None:
    def make_kernel(original: Callable[..., Any]) -> Callable[..., Any]:
        def _create_gufunc_for_parfor_body(lowerer: Any, parfor: Any, *args: Any, **kwargs: Any) -> Any:
            from . import lowering

            with lowering.within_loop(lowerer, parfor):
                return original(lowerer, parfor, *args, **kwargs)

        return _create_gufunc_for_parfor_body

    def make_inst(original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        with_marks = _make_lower_inst(original)

        def lower_inst(self: Any, inst: Any) -> None:
            # All other statements pass through `Lower.lower_inst`.
            (with_marks if isinstance(inst, module.parfor.Parfor) else original)(self, inst)

        return lower_inst

    _replace(module, "_create_gufunc_for_parfor_body", make_kernel)
    _replace(module.ParforLower, "lower_inst", make_inst)
    _replace(module, "_hoist_internal", lambda original: lambda *args, **kwargs: False)


def _patch_parfor(module: Any) -> None:
    def is_loop(parfor: Any) -> bool:
        return any(pattern[0] == "prange" for pattern in parfor.patterns)

    def make_wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def try_fuse(equiv_set: Any, parfor1: Any, parfor2: Any, *args: Any, **kwargs: Any) -> Any:
            if is_loop(parfor1) or is_loop(parfor2):
                return None, None
            return original(equiv_set, parfor1, parfor2, *args, **kwargs)

        return try_fuse

    _replace(module, "try_fuse", make_wrapper)


# Origin of statements


def _patch_inlining(module: Any) -> None:
    from numba.core.ir import Loc

    from .._lines import inlined, locations

    def make_worker(original: Callable[..., Any]) -> Callable[..., Any]:
        def inline_ir(
            self: Any, caller_ir: Any, block: Any, i: int, callee_ir: Any, *args: Any, **kwargs: Any
        ) -> Any:
            call = locations.source_location(block.body[i].loc)
            result = original(self, caller_ir, block, i, callee_ir, *args, **kwargs)
            inlined.mark_call(result[1].values(), inlined.call_of_ir(callee_ir, call))
            return result

        return inline_ir

    def make_closure(original: Callable[..., Any]) -> Callable[..., Any]:
        def inline_closure_call(
            func_ir: Any, glbls: Any, block: Any, i: int, callee: Any, *args: Any, **kwargs: Any
        ) -> Any:
            call = locations.source_location(block.body[i].loc)
            result = original(func_ir, glbls, block, i, callee, *args, **kwargs)
            inlined.mark_call(result[0].values(), inlined.call_of_callee(callee, func_ir, call))
            return result

        return inline_closure_call

    for name, method in locations.METHODS.items():
        setattr(Loc, name, method)
    _replace(module.InlineWorker, "inline_ir", make_worker)
    _replace(module, "inline_closure_call", make_closure)


def _patch_dispatcher(module: Any) -> None:
    def make_wrapper(original: Callable[..., None]) -> Callable[..., None]:
        def __init__(self: Any, func_ir: Any, *args: Any, **kwargs: Any) -> None:
            from . import plan

            original(self, func_ir, *args, **kwargs)
            setattr(self.func_ir, plan.PART, (None, None))

        return __init__

    _replace(module.LiftedCode, "__init__", make_wrapper)


def _patch_stencils(module: Any) -> None:
    def make_wrapper(original: Callable[..., None]) -> Callable[..., None]:
        def __init__(self: Any, kernel_ir: Any, *args: Any, **kwargs: Any) -> None:
            original(self, kernel_ir, *args, **kwargs)
            STENCILS[str(self.id)] = kernel_ir.func_id

        return __init__

    _replace(module.StencilFunc, "__init__", make_wrapper)


def _patch_parallel_stencils(module: Any) -> None:
    from .._lines import inlined, locations

    def make_wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def _mk_stencil_parfor(self: Any, label: int, in_args: Any, out_arr: Any, stencil_ir: Any, *rest: Any) -> Any:
            from numba.core import ir
            from numba.parfors.parfor import Parfor

            _index_offsets, target, _return_type, stencil = rest[:4]
            # The loop is a copy of the stencil's kernel, with copies of its locations.
            inlined.mark_call(
                stencil_ir.blocks.values(),
                inlined.call_of_ir(stencil.kernel_ir, locations.source_location(target.loc)),
            )
            last_statements = [block.body[-1] for block in stencil_ir.blocks.values()]
            returns = [statement.loc for statement in last_statements if isinstance(statement, ir.Return)]
            nodes = original(self, label, in_args, out_arr, stencil_ir, *rest)
            for node in nodes:
                body = node.loop_body if isinstance(node, Parfor) else {}
                for statement in body[max(body)].body if body and len(returns) == 1 else ():
                    if isinstance(statement, ir.SetItem):
                        statement.loc = returns[0]
            return nodes

        return _mk_stencil_parfor

    _replace(module.StencilPass, "_mk_stencil_parfor", make_wrapper)


_PATCHES: Dict[str, Callable[[Any], None]] = {
    "numba.core.caching": _patch_caching,
    "numba.core.codegen": _patch_codegen,
    "numba.core.dispatcher": _patch_dispatcher,
    "numba.core.inline_closurecall": _patch_inlining,
    "numba.core.lowering": _patch_lowering,
    "numba.core.pylowering": _patch_pylowering,
    "numba.core.typed_passes": _patch_typed_passes,
    "numba.parfors.parfor": _patch_parfor,
    "numba.stencils.stencil": _patch_stencils,
    "numba.stencils.stencilparfor": _patch_parallel_stencils,
    "numba.parfors.parfor_lowering": _patch_parfor_lowering,
}
