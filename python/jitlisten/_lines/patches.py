"""What is replaced in Numba.

| replaced                                         | why |
| ------------------------------------------------ | --- |
| `lowering.BaseLower.__init__`                    | a builder of ours in the place of Numba's empty one |
| `pylowering.PyLower.lower_inst`                  | object mode does not mark locations itself |
| `parfor_lowering._create_gufunc_for_parfor_body` | whose loop a generated kernel is |
| `stencilparfor.StencilPass._mk_stencil_parfor`   | the loop of a stencil has the location of its argument |
| `inline_closurecall.InlineWorker.inline_ir`, `.inline_closure_call` | what Numba inlines itself |
| `ir.Loc.__getstate__`, `__copy__`, `__deepcopy__` | are added: it keeps what lines know beside it |
| `pythonapi.PythonAPI.serialize_object`           | an exception's arguments are pickled with their module |
| `debuginfo.suspend_emission`                     | reference counting keeps the line that causes it |
| `typed_passes.PreLowerStripPhis._strip_phi_nodes` | copies at the end of a branch have the line of another one |
| `codegen.CPUCodeLibrary.add_ir_module`           | wrappers; returns; calls without a location |
| llvmlite's `_HasMetadata._stringify_metadata`, `Block.descr` | the text of a module has lines only for LLVM |
| `codegen.CodeLibrary.__init__`, `caching.Cache.save_overload`, `codegen.CPUCodegen.magic_tuple` | cached code |

Cached code with lines and without is kept apart (cache_keys.py).

Replacements stay, and do nothing while lines are off. Another thread may be in the middle of a compilation when they
are switched on or off, and so may the same thread: `jitlisten attach` runs between any two of its instructions. Each
library of Numba's, which is one compiled function and its wrappers, has lines or none as it was when it was created,
and so has its entry in the cache. No lock is taken.

`flags` stay unchanged: debug flags change the code, and are part of every symbol's name.
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

# Part of the key of cached code. Another number when names, locations or hashes change: a cache would keep the old
# ones.
MARKER = "jitlisten-lines-4"


NOT_INSTALLED, NOT_IMPORTED = "not installed", "numba has not been imported"


class _State:
    def __init__(self) -> None:
        self.wanted = False
        self.watch: Optional[Watch] = None
        self.failed: Optional[str] = None
        # By name of a module: empty until its patches are complete. A module is patched once.
        self.patched: Dict[str, List[str]] = {}


_state = _State()


def install() -> None:
    """Lines from now on, or from the moment Numba is imported. Nothing the second time."""
    if _state.wanted:
        return
    # What could not be patched stays so.
    if all(_state.patched.values()):
        _state.failed = None
    _state.wanted = True
    rest = [name for name in _PATCHES if name not in _state.patched]
    watch = _state.watch = Watch({name: functools.partial(_patch, _PATCHES[name]) for name in rest})
    watch.start()


def remove() -> None:
    """No lines for functions whose library is created from now on."""
    _state.wanted = False
    _stop_watching()


def _stop_watching() -> None:
    watch, _state.watch = _state.watch, None
    if watch is not None:
        watch.stop()


def reason() -> Optional[str]:
    """Why there are no lines; `None` if there are."""
    watch = _state.watch
    if watch is not None:
        watch.look_again()
    if _state.failed is not None:
        return _state.failed
    if not _state.wanted:
        return NOT_INSTALLED
    if _is_active():
        return None
    return NOT_IMPORTED


def _is_active() -> bool:
    return _state.wanted and _state.failed is None and all(map(_state.patched.get, _REQUIRED))


_key = CacheKey("lines", _is_active)


def _patch(after: Callable[[ModuleType], None], module: ModuleType) -> None:
    if _state.failed is not None or not _state.wanted:
        return
    try:
        version = versions.numba_version(sys.modules.get("numba"))
        _state.failed = versions.why_not(version, os.environ.get("JITLISTEN_LINES") == "force")
        # Another thread may be here, too.
        claim: List[str] = []
        if _state.failed is None and _state.patched.setdefault(module.__name__, claim) is claim:
            after(module)
            claim.append("complete")
            if module.__name__ in _REQUIRED and _is_active():
                log.info("lines for numba %s" % version)
    except Exception as error:
        _state.failed = "%s: %s: %s" % (module.__name__, type(error).__name__, error)
    if _state.failed is not None:
        _stop_watching()
        log.warn("no lines: " + _state.failed)


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    original = owner.__dict__[name]
    setattr(owner, name, functools.wraps(original)(make(original)))


def _add(owner: Any, name: str, method: Callable[..., Any]) -> None:
    if name in owner.__dict__:
        raise RuntimeError("%s has %s of its own" % (owner.__name__, name))
    setattr(owner, name, method)


def _guarded(consequence: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The function's result; `None` if it fails, which costs lines only."""
    try:
        return function(*arguments)
    except Exception as error:
        log.warn("%s: %s: %s" % (consequence, type(error).__name__, error))
        return None


def _lowering(module: Any) -> None:
    # What imports Numba and llvmlite is imported when they are.
    from . import builder

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def __init__(self: Any, *arguments: Any, **named: Any) -> None:
            original(self, *arguments, **named)
            if _key.is_in(self.library):
                builder.take_over(self)

        return __init__

    _replace(module.BaseLower, "__init__", make)


def _pylowering(module: Any) -> None:
    from . import builder

    def make(original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        def lower_inst(self: Any, inst: Any) -> None:
            if isinstance(self.debuginfo, builder.LineBuilder):
                self.debuginfo.mark_location(self.builder, self.loc.line)
            original(self, inst)

        return lower_inst

    _replace(module.PyLower, "lower_inst", make)


def _pythonapi(module: Any) -> None:
    from llvmlite import ir

    from . import metadata

    def holds_values(constant: Any) -> bool:
        if isinstance(constant, tuple):
            return any(map(holds_values, constant))
        return isinstance(constant, ir.Value)

    def make(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def serialize_object(self: Any, obj: Any) -> Any:
            if metadata.lines_of(self.module) is None or not holds_values(obj):
                return original(self, obj)
            with metadata.detached(self.module):
                return original(self, obj)

        return serialize_object

    _replace(module.PythonAPI, "serialize_object", make)


def _debuginfo(module: Any) -> None:
    from contextlib import nullcontext

    from . import builder, metadata

    kept = nullcontext()

    def make(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def suspend_emission(llvm_builder: Any) -> Any:
            location = llvm_builder.debug_metadata
            return kept if type(location) is metadata.Node and not builder.is_head(location) else original(llvm_builder)

        return suspend_emission

    _replace(module, "suspend_emission", make)


def _typed_passes(module: Any) -> None:
    from . import phis

    def make(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def _strip_phi_nodes(self: Any, func_ir: Any) -> Any:
            before = _guarded("copies at joins have other lines", phis.joins, func_ir) if _is_active() else None
            done = original(self, func_ir)
            if before is not None:
                _guarded("copies at joins have other lines", phis.relocate, before, done)
            return done

        return _strip_phi_nodes

    _replace(module.PreLowerStripPhis, "_strip_phi_nodes", make)


def _parfor_lowering(module: Any) -> None:
    from . import builder

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def _create_gufunc_for_parfor_body(lowerer: Any, parfor: Any, *arguments: Any, **named: Any) -> Any:
            with builder.within_loop(lowerer, parfor):
                return original(lowerer, parfor, *arguments, **named)

        return _create_gufunc_for_parfor_body

    _replace(module, "_create_gufunc_for_parfor_body", make)


def _stencilparfor(module: Any) -> None:
    from . import stencils

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def _mk_stencil_parfor(
            self: Any, label: Any, in_args: Any, out_arr: Any, ir: Any, offsets: Any, target: Any, *more: Any
        ) -> Any:
            done = original(self, label, in_args, out_arr, ir, offsets, target, *more)
            if _is_active():
                _guarded("a stencil has other lines", stencils.relocate, done, in_args[0], target, self.func_ir)
            return done

        return _mk_stencil_parfor

    _replace(module.StencilPass, "_mk_stencil_parfor", make)


def _inlining(module: Any) -> None:
    from numba.core.ir import Loc

    from . import inlined, locations

    def note(
        block: Any, at: int, make: Callable[[Any], Any], call: Callable[[], Any], added: Callable[[Any], Any]
    ) -> Any:
        def of_call() -> Any:
            return locations.place_of(block.body[at].loc)

        def mark() -> None:
            inlined.mark(added(done), make(place))

        place = _guarded("an inlined call has no frame", of_call) if _is_active() else None
        done = call()
        if place is not None:
            _guarded("an inlined call has no frame", mark)
        return done

    def make_worker(original: Callable[..., Any]) -> Callable[..., Any]:

        def inline_ir(
            self: Any, caller_ir: Any, block: Any, i: int, callee_ir: Any, *arguments: Any, **named: Any
        ) -> Any:
            return note(
                block,
                i,
                functools.partial(inlined.of_ir, callee_ir),
                lambda: original(self, caller_ir, block, i, callee_ir, *arguments, **named),
                lambda done: done[1].values(),
            )

        return inline_ir

    def make_closure(original: Callable[..., Any]) -> Callable[..., Any]:

        def inline_closure_call(
            func_ir: Any, glbls: Any, block: Any, i: int, callee: Any, *arguments: Any, **named: Any
        ) -> Any:
            return note(
                block,
                i,
                functools.partial(inlined.of_callee, callee, func_ir),
                lambda: original(func_ir, glbls, block, i, callee, *arguments, **named),
                lambda done: done[0].values(),
            )

        return inline_closure_call

    for name, method in locations.METHODS.items():
        _add(Loc, name, method)
    _replace(module.InlineWorker, "inline_ir", make_worker)
    _replace(module, "inline_closure_call", make_closure)


def _codegen(module: Any) -> None:
    from llvmlite.ir import Block
    from llvmlite.ir._utils import _HasMetadata

    from . import metadata, verified, wrappers

    def make_add(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def add_ir_module(self: Any, ir_module: Any) -> Any:
            is_ours = _key.is_in(self) or metadata.lines_of(ir_module) is not None
            if not is_ours or isinstance(self.codegen, module.AOTCPUCodegen):
                return original(self, ir_module)
            if wrappers.complete(ir_module) and verified.may_have_lines(ir_module):
                try:
                    with verified.left_to_numba(), metadata.written(ir_module):
                        return original(self, ir_module)
                except RuntimeError as error:
                    # LLVM does not read it, or refuses it: nothing has been added yet.
                    log.warn("no lines for %s: %s" % (ir_module.name, error))
            return original(self, ir_module)

        return add_ir_module

    def make_magic(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def magic_tuple(self: Any) -> Any:
            magic = original(self)
            return tuple(magic) + (MARKER,) if _key.has_word() else magic

        return magic_tuple

    _replace(module.CodeLibrary, "__init__", _key.creating)
    _replace(module.CPUCodeLibrary, "add_ir_module", make_add)
    _replace(module.CPUCodegen, "magic_tuple", make_magic)
    _replace(_HasMetadata, "_stringify_metadata", metadata.text_of_metadata)
    _replace(Block, "descr", metadata.text_of_block)


def _caching(module: Any) -> None:
    _replace(module.Cache, "save_overload", _key.saving)


_PATCHES = {
    "numba.core.caching": _caching,
    "numba.core.codegen": _codegen,
    "numba.core.debuginfo": _debuginfo,
    "numba.core.inline_closurecall": _inlining,
    "numba.core.lowering": _lowering,
    "numba.core.pylowering": _pylowering,
    "numba.core.pythonapi": _pythonapi,
    "numba.core.typed_passes": _typed_passes,
    "numba.parfors.parfor_lowering": _parfor_lowering,
    "numba.stencils.stencilparfor": _stencilparfor,
}
# What `import numba` imports.
_REQUIRED = tuple(
    "numba.core." + name
    for name in ("caching", "codegen", "debuginfo", "lowering", "pylowering", "pythonapi", "typed_passes")
)
