"""What is replaced in Numba while coverage is measured. Cached code with marks and without is kept apart
(`_lines/cache_keys.py`).

| replaced                                            | why |
| --------------------------------------------------- | --- |
| `lowering.BaseLower.lower_block`, `Lower.lower_inst` | the stores |
| `PyLower.lower_inst`, `ParforLower.lower_inst`     | the same |
| `codegen.CPUCodeLibrary.add_ir_module`              | the table of a function gets its name |
| `codegen.CodeLibrary.__init__`, `caching.Cache.save_overload`, `codegen.CPUCodegen.magic_tuple` | cached code |
| `codegen.JITCodeLibrary._unserialize`, `caching.Cache.load_overload` | tables of cached code of the same source |
| `typed_passes.PreLowerStripPhis._strip_phi_nodes`   | its copies get no line: that of the value may not have run |
| `parfor_lowering._hoist_internal`, `parfor.try_fuse` | constants stay in the branch they are in, loops stay apart |
| `parfor_lowering._create_gufunc_for_parfor_body`    | whose loop a generated kernel is |
| `inline_closurecall.InlineWorker.inline_ir`, `.inline_closure_call`, `ir.Loc`'s copying | what Numba inlines itself |
| `stencil.StencilFunc.__init__`                      | whose statements a generated function has |
| `stencilparfor.StencilPass._mk_stencil_parfor`       | what a parallel stencil does instead of `return` has its line |
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

# Part of the key of cached code. Another number when marks or their names change.
MARKER = "jitlisten-coverage-1"
_TOO_EARLY = "compiled before coverage.py started"
# By the end of the name of the function that is generated around it: whose statements it has.
STENCILS: Dict[str, Any] = {}


class _State:
    watch: Optional[Watch] = None
    # Once every module that is there has been patched: another thread may be compiling.
    is_ready = False
    # Why nothing is measured, where that is so.
    why_not: Optional[str] = None


_state = _State()


def install() -> None:
    """From now on, or from the moment Numba is imported. Stays."""
    if _state.watch is None:
        # They look for the same modules, and their lines would be those of other code.
        _lines.remove()
        _note_compiled()
        _state.watch = Watch({name: functools.partial(_patch, after) for name, after in _PATCHES.items()})
        _state.watch.start()
        _state.is_ready = True


def _note_compiled() -> None:
    """What this process has compiled already has no marks."""
    dispatcher = sys.modules.get("numba.core.dispatcher")
    if dispatcher is None:
        return
    from . import unmeasured

    for each in gc.get_objects():
        if isinstance(each, dispatcher.Dispatcher) and each.overloads:
            function = each.py_func
            if not str(function.__module__).startswith("numba."):
                unmeasured.add_name(_TOO_EARLY, "%s.%s" % (function.__module__, function.__qualname__))


def is_installed() -> bool:
    return _state.watch is not None


def _is_active() -> bool:
    return _state.why_not is None


# Of a compilation that began without marks, all has none.
_key = CacheKey("marks", lambda: _state.is_ready and _is_active())


def _patch(after: Callable[[ModuleType], None], module: ModuleType) -> None:
    if not _is_active():
        return
    try:
        version = versions.numba_version(sys.modules.get("numba"))
        _state.why_not = versions.why_not(version, False)
        if _is_active():
            after(module)
    except Exception as error:
        _state.why_not = "%s: %s: %s" % (module.__name__, type(error).__name__, error)
    if _state.why_not is not None:
        from . import unmeasured

        unmeasured.add_all("No compiled code is measured: " + _state.why_not)


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    original = owner.__dict__[name]
    setattr(owner, name, functools.wraps(original)(make(original)))


# --- stores
# ---------------------------------------------------------------------------------------------------------------


def _lowering(module: Any) -> None:
    def make_block(original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        def lower_block(self: Any, block: Any) -> None:
            # Modules of Numba import each other: what imports them is imported when it is needed.
            from . import lowering

            held = self.__dict__
            if "_jitlisten_coverage" not in held:
                # Stores without a table, where a patch failed, would crash the program.
                held["_jitlisten_coverage"] = _begin(self, lowering.begin) if _is_active() else None
            made = held["_jitlisten_coverage"]
            if made is None:
                original(self, block)
                return
            made.begin_block(block)
            original(self, block)
            made.end_block()

        return lower_block

    _replace(module.BaseLower, "lower_block", make_block)
    _replace(module.Lower, "lower_inst", _make_inst)


def _begin(lowerer: Any, begin: Callable[[Any], Any]) -> Any:
    if _key.is_in(lowerer.library):
        return begin(lowerer)
    from . import unmeasured

    unmeasured.add(_TOO_EARLY, lowerer)
    return None


def _make_inst(original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    def lower_inst(self: Any, inst: Any) -> None:
        made = self.__dict__.get("_jitlisten_coverage")
        if made is None:
            original(self, inst)
            return
        made.before(inst)
        with made.on_edges(inst):
            original(self, inst)

    return lower_inst


def _pylowering(module: Any) -> None:
    _replace(module.PyLower, "lower_inst", _make_inst)


# --- code in Numba's cache
# ------------------------------------------------------------------------------------------------


def _codegen(module: Any) -> None:
    from . import marks

    def make_add(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def add_ir_module(self: Any, ir_module: Any) -> Any:
            from . import lowering

            lowering.finish(ir_module)
            return original(self, ir_module)

        return add_ir_module

    def make_magic(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def magic_tuple(self: Any) -> Any:
            return tuple(original(self)) + ((MARKER,) if _key.has_word() else ())

        return magic_tuple

    original_load = module.JITCodeLibrary._unserialize.__func__

    def _unserialize(cls: Any, codegen: Any, state: Any) -> Any:
        data = state[2]
        for part in data if isinstance(data, tuple) else (data,):
            marks.register_all(part)
        return original_load(cls, codegen, state)

    _replace(module.CodeLibrary, "__init__", _key.creating)
    _replace(module.CPUCodeLibrary, "add_ir_module", make_add)
    _replace(module.CPUCodegen, "magic_tuple", make_magic)
    module.JITCodeLibrary._unserialize = classmethod(_unserialize)


def _caching(module: Any) -> None:
    from . import marks

    def make_load(original: Callable[..., Any]) -> Callable[..., Any]:
        def load_overload(self: Any, *arguments: Any, **named: Any) -> Any:
            try:
                return original(self, *arguments, **named)
            except marks.Stale:
                return None

        return load_overload

    _replace(module.Cache, "load_overload", make_load)
    _replace(module.Cache, "save_overload", _key.saving)


# --- lines that did not run
# -----------------------------------------------------------------------------------------------


def _typed_passes(module: Any) -> None:
    def make(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def _strip_phi_nodes(self: Any, func_ir: Any) -> Any:
            before = {id(statement) for block in func_ir.blocks.values() for statement in block.body}
            stripped = original(self, func_ir)
            for block in stripped.blocks.values():
                for statement in block.body:
                    if id(statement) not in before:
                        statement.loc = statement.loc.with_lineno(0)
            return stripped

        return _strip_phi_nodes

    _replace(module.PreLowerStripPhis, "_strip_phi_nodes", make)


def _parfor_lowering(module: Any) -> None:
    def make_kernel(original: Callable[..., Any]) -> Callable[..., Any]:
        def _create_gufunc_for_parfor_body(lowerer: Any, parfor: Any, *arguments: Any, **named: Any) -> Any:
            from . import lowering

            with lowering.within_loop(lowerer, parfor):
                return original(lowerer, parfor, *arguments, **named)

        return _create_gufunc_for_parfor_body

    def make_inst(original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        with_marks = _make_inst(original)

        def lower_inst(self: Any, inst: Any) -> None:
            # All others come by `Lower.lower_inst`.
            (with_marks if isinstance(inst, module.parfor.Parfor) else original)(self, inst)

        return lower_inst

    _replace(module, "_create_gufunc_for_parfor_body", make_kernel)
    _replace(module.ParforLower, "lower_inst", make_inst)
    _replace(module, "_hoist_internal", lambda original: lambda *arguments, **named: False)


def _parfor(module: Any) -> None:
    def is_loop(parfor: Any) -> bool:
        return any(pattern[0] == "prange" for pattern in parfor.patterns)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def try_fuse(equiv_set: Any, parfor1: Any, parfor2: Any, *arguments: Any, **named: Any) -> Any:
            if is_loop(parfor1) or is_loop(parfor2):
                return None, None
            return original(equiv_set, parfor1, parfor2, *arguments, **named)

        return try_fuse

    _replace(module, "try_fuse", make)


# --- whose statements they are
# --------------------------------------------------------------------------------------------


def _inlining(module: Any) -> None:
    from numba.core.ir import Loc

    from .._lines import inlined, locations

    def make_worker(original: Callable[..., Any]) -> Callable[..., Any]:
        def inline_ir(
            self: Any, caller_ir: Any, block: Any, i: int, callee_ir: Any, *arguments: Any, **named: Any
        ) -> Any:
            call = locations.place_of(block.body[i].loc)
            done = original(self, caller_ir, block, i, callee_ir, *arguments, **named)
            inlined.mark(done[1].values(), inlined.of_ir(callee_ir, call))
            return done

        return inline_ir

    def make_closure(original: Callable[..., Any]) -> Callable[..., Any]:
        def inline_closure_call(
            func_ir: Any, glbls: Any, block: Any, i: int, callee: Any, *arguments: Any, **named: Any
        ) -> Any:
            call = locations.place_of(block.body[i].loc)
            done = original(func_ir, glbls, block, i, callee, *arguments, **named)
            inlined.mark(done[0].values(), inlined.of_callee(callee, func_ir, call))
            return done

        return inline_closure_call

    for name, method in locations.METHODS.items():
        setattr(Loc, name, method)
    _replace(module.InlineWorker, "inline_ir", make_worker)
    _replace(module, "inline_closure_call", make_closure)


def _dispatcher(module: Any) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def __init__(self: Any, func_ir: Any, *arguments: Any, **named: Any) -> None:
            from . import plan

            original(self, func_ir, *arguments, **named)
            setattr(self.func_ir, plan.PART, (None, None))

        return __init__

    _replace(module.LiftedCode, "__init__", make)


def _stencils(module: Any) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def __init__(self: Any, kernel_ir: Any, *arguments: Any, **named: Any) -> None:
            original(self, kernel_ir, *arguments, **named)
            STENCILS[str(self.id)] = kernel_ir.func_id

        return __init__

    _replace(module.StencilFunc, "__init__", make)


def _parallel_stencils(module: Any) -> None:
    from .._lines import inlined, locations

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def _mk_stencil_parfor(self: Any, label: int, in_args: Any, out_arr: Any, stencil_ir: Any, *others: Any) -> Any:
            from numba.core import ir
            from numba.parfors.parfor import Parfor

            _index_offsets, target, _return_type, stencil = others[:4]
            # It is a copy of the stencil's, and so are its locations.
            inlined.mark(stencil_ir.blocks.values(), inlined.of_ir(stencil.kernel_ir, locations.place_of(target.loc)))
            last = [block.body[-1] for block in stencil_ir.blocks.values()]
            returns = [statement.loc for statement in last if isinstance(statement, ir.Return)]
            made = original(self, label, in_args, out_arr, stencil_ir, *others)
            for node in made:
                body = node.loop_body if isinstance(node, Parfor) else {}
                for statement in body[max(body)].body if body and len(returns) == 1 else ():
                    if isinstance(statement, ir.SetItem):
                        statement.loc = returns[0]
            return made

        return _mk_stencil_parfor

    _replace(module.StencilPass, "_mk_stencil_parfor", make)


_PATCHES: Dict[str, Callable[[Any], None]] = {
    "numba.core.caching": _caching,
    "numba.core.codegen": _codegen,
    "numba.core.dispatcher": _dispatcher,
    "numba.core.inline_closurecall": _inlining,
    "numba.core.lowering": _lowering,
    "numba.core.pylowering": _pylowering,
    "numba.core.typed_passes": _typed_passes,
    "numba.parfors.parfor": _parfor,
    "numba.stencils.stencil": _stencils,
    "numba.stencils.stencilparfor": _parallel_stencils,
    "numba.parfors.parfor_lowering": _parfor_lowering,
}
