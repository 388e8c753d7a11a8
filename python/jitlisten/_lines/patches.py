"""What is replaced in Numba, and put back by `remove`.

| replaced                                         | why |
| ------------------------------------------------ | --- |
| `lowering.BaseLower.__init__`                    | a builder of ours in the place of Numba's empty one |
| `pylowering.PyLower.lower_inst`                  | object mode does not mark locations itself |
| `parfor_lowering._create_gufunc_for_parfor_body` | whose loop a generated kernel is |
| `stencilparfor.StencilPass._mk_stencil_parfor`   | the loop of a stencil has the location of its argument |
| `inline_closurecall.InlineWorker.inline_ir`, `.inline_closure_call` | what Numba inlines itself |
| `ir.Loc.__getstate__`, `__copy__`, `__deepcopy__` | are added: its location keeps by which call it came |
| `pythonapi.PythonAPI.serialize_object`           | an exception's arguments are pickled with their module |
| `debuginfo.suspend_emission`                     | reference counting keeps the line that causes it |
| `typed_passes.PreLowerStripPhis._strip_phi_nodes` | copies at the end of a branch have the line of another one |
| `codegen.CPUCodeLibrary.add_ir_module`           | wrappers; returns; calls without a location |
| llvmlite's `_HasMetadata._stringify_metadata`    | the same text, quickly: it is there for each instruction |
| `codegen.CPUCodegen.magic_tuple`                 | keeps cached code with lines and without apart |

`flags` stay unchanged: debug flags change the code, and are part of every symbol's name.

One option of LLVM is set, and stays (verified.py).
"""

from __future__ import annotations

import functools
import os
import sys
from types import ModuleType
from typing import Any, Callable, List, Optional, Tuple

from . import log, versions
from .imports import Watch

# Part of the key of cached code. Another number when names, locations or hashes change: a cache would keep the old
# ones.
MARKER = "jitlisten-lines-4"
# In the place of what was not there.
_NOTHING = object()

_REQUIRED = ("numba.core.lowering", "numba.core.codegen")


class _State:
    def __init__(self) -> None:
        self.watch: Optional[Watch] = None
        self.undo: List[Tuple[Any, str, Any]] = []
        self.done: List[str] = []
        self.failed: Optional[str] = None


_state = _State()


def install() -> None:
    """Waits for Numba's modules, or patches them at once. Nothing the second time."""
    if _state.watch is not None:
        return
    _state.failed = None
    _state.watch = Watch({name: functools.partial(_patch, after) for name, after in _PATCHES.items()})
    _state.watch.start()


def remove() -> None:
    """Puts everything back."""
    if _state.watch is not None:
        _state.watch.stop()
    _state.watch = None
    _put_back()


def reason() -> Optional[str]:
    """Why there are no lines; `None` if there are."""
    if _state.failed is not None:
        return _state.failed
    if _state.watch is None:
        return "not installed"
    if _is_active():
        return None
    return "numba has not been imported"


def _is_active() -> bool:
    return all(name in _state.done for name in _REQUIRED)


def _put_back() -> None:
    while _state.undo:
        owner, name, original = _state.undo.pop()
        if original is _NOTHING:
            delattr(owner, name)
        else:
            setattr(owner, name, original)
    del _state.done[:]


def _give_up(why: str) -> None:
    if _state.watch is not None:
        _state.watch.stop()
    _put_back()
    _state.failed = why
    log.warn("no lines: " + why)


def _patch(after: Callable[[ModuleType], None], module: ModuleType) -> None:
    if _state.failed is not None or _state.watch is None:
        return
    try:
        version = versions.numba_version(sys.modules.get("numba"))
        why_not = versions.why_not(version, os.environ.get("JITLISTEN_LINES") == "force")
        if why_not is not None:
            _give_up(why_not)
            return
        after(module)
        _state.done.append(module.__name__)
        if module.__name__ in _REQUIRED and _is_active():
            log.info("lines for numba %s" % version)
    except Exception as error:
        _give_up("%s: %s: %s" % (module.__name__, type(error).__name__, error))


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    original = owner.__dict__[name]
    _state.undo.append((owner, name, original))
    setattr(owner, name, functools.wraps(original)(make(original)))


def _add(owner: Any, name: str, method: Callable[..., Any]) -> None:
    if name in owner.__dict__:
        raise RuntimeError("%s has %s of its own" % (owner.__name__, name))
    _state.undo.append((owner, name, _NOTHING))
    setattr(owner, name, method)


def _lowering(module: Any) -> None:
    # What imports Numba and llvmlite is imported when they are.
    from . import builder

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def __init__(self: Any, *arguments: Any, **named: Any) -> None:
            original(self, *arguments, **named)
            if _is_active():
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
            before = phis.joins(func_ir) if _is_active() else None
            done = original(self, func_ir)
            if before is not None:
                phis.relocate(before, done)
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
                stencils.relocate(done, in_args[0], target, self.func_ir)
            return done

        return _mk_stencil_parfor

    _replace(module.StencilPass, "_mk_stencil_parfor", make)


def _inlining(module: Any) -> None:
    from numba.core.ir import Loc

    from . import inlined

    def note(
        block: Any, at: int, make: Callable[[Any], Any], call: Callable[[], Any], added: Callable[[Any], Any]
    ) -> Any:
        try:
            place = inlined.place_of(block.body[at].loc) if _is_active() else None
        except Exception:  # what the call says of it, it says
            place = None
        done = call()
        if place is not None:
            try:
                inlined.mark(added(done), make(place))
            except Exception as error:
                log.warn("an inlined call has no frame: %s: %s" % (type(error).__name__, error))
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

    for name, method in inlined.METHODS.items():
        _add(Loc, name, method)
    _replace(module.InlineWorker, "inline_ir", make_worker)
    _replace(module, "inline_closure_call", make_closure)


def _codegen(module: Any) -> None:
    from llvmlite.ir._utils import _HasMetadata

    from . import metadata, verified, wrappers

    def make_add(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def add_ir_module(self: Any, ir_module: Any) -> Any:
            if not _is_active() or isinstance(self.codegen, module.AOTCPUCodegen):
                return original(self, ir_module)
            wrappers.complete(ir_module)
            if verified.would_end_the_process(ir_module):
                wrappers.without_lines(ir_module, RuntimeError("rejected by LLVM"))
            try:
                return original(self, ir_module)
            except RuntimeError as error:
                # LLVM does not read it, or refuses it: nothing has been added yet.
                if not wrappers.without_lines(ir_module, error):
                    raise
                return original(self, ir_module)

        return add_ir_module

    def make_magic(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def magic_tuple(self: Any) -> Any:
            magic = original(self)
            return tuple(magic) + (MARKER,) if _is_active() else magic

        return magic_tuple

    def make_text(original: Callable[..., str]) -> Callable[..., str]:
        node = metadata.Node

        def _stringify_metadata(self: Any, leading_comma: bool = False) -> str:
            # As short as it can be: each instruction comes here. A location and nothing else is its own text.
            held = self.metadata
            if len(held) == 1 and leading_comma and "dbg" in held and type(held["dbg"]) is node:
                return held["dbg"]
            return original(self, leading_comma)

        return _stringify_metadata

    verified.leave_to_numba()
    _replace(module.CPUCodeLibrary, "add_ir_module", make_add)
    _replace(module.CPUCodegen, "magic_tuple", make_magic)
    if "_stringify_metadata" in _HasMetadata.__dict__:
        _replace(_HasMetadata, "_stringify_metadata", make_text)


_PATCHES = {
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
