"""Functions of Numba that are replaced, and the parts that subscribe to them: lines, coverage and compilations.

A function is replaced when the first part subscribes. The replacement calls the hooks of all parts, each around the
next one, and the original innermost:

    hook(original, *args, **kwargs)

The parameters of a hook have Numba's names, because they may be passed by keyword.

Replacements are permanent, and a hook decides at each call whether it has an effect. Another thread may be compiling
when a part is started or stopped, and so may the same thread: `jitlisten attach` runs between any two of its
instructions. Each library of Numba, which is one compiled function and its wrappers, therefore keeps the state in which
it was created (cache_keys.py). No lock is necessary: to subscribe is one assignment, which may be repeated.
"""

from __future__ import annotations

import enum
import functools
import gc
import sys
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Callable, Dict, Iterator, Optional

from .. import _log
from .imports import Watch
from .replacement import Hook, Replacement
from .versions import Unsupported

Original = Callable[..., Any]


class Seam(enum.Enum):
    """A Numba or llvmlite function that is replaced, as module name and qualified name."""

    # Cached code
    INIT_LIBRARY = "numba.core.codegen", "CodeLibrary.__init__"
    CACHE_KEY = "numba.core.codegen", "CPUCodegen.magic_tuple"
    SAVE_OVERLOAD = "numba.core.caching", "Cache.save_overload"
    LOAD_OVERLOAD = "numba.core.caching", "Cache.load_overload"
    LOAD_NO_OVERLOAD = "numba.core.caching", "NullCache.load_overload"
    LOAD_OBJECT = "numba.core.codegen", "CPUCodeLibrary._unserialize"
    # Translation of bytecode
    INTERPRET = "numba.core.interpreter", "Interpreter.interpret"
    # Compilation
    COMPILE_FUNCTION = "numba.core.compiler", "compile_extra"
    COMPILE = "numba.core.compiler", "CompilerBase._compile_core"
    ADD_MODULE = "numba.core.codegen", "CPUCodeLibrary.add_ir_module"
    OBJECT_COMPILED = "numba.core.codegen", "CPUCodeLibrary._object_compiled_hook"
    BUILD_WRAPPER = "numba.np.ufunc.ufuncbuilder", "_build_element_wise_ufunc_wrapper"
    BUILD_GENERALIZED_WRAPPER = "numba.np.ufunc.ufuncbuilder", "GUFuncBuilder.build"
    REFRESH = "numba.core.base", "BaseContext.refresh"
    REFRESH_TYPES = "numba.core.typing.context", "BaseContext.refresh"
    REBUILD = "numba.core.dispatcher", "Dispatcher._rebuild"
    # Lowering
    INIT_LOWERER = "numba.core.lowering", "BaseLower.__init__"
    LOWER_BLOCK = "numba.core.lowering", "BaseLower.lower_block"
    LOWER_STATEMENT = "numba.core.lowering", "Lower.lower_inst"
    LOWER_OBJECT_MODE = "numba.core.pylowering", "PyLower.lower_inst"
    SERIALIZE = "numba.core.pythonapi", "PythonAPI.serialize_object"
    SUSPEND_LOCATIONS = "numba.core.debuginfo", "suspend_emission"
    # Passes before lowering
    SPLIT_LOOP_ENTRY = "numba.core.untyped_passes", "CanonicalizeLoopEntry.run_pass"
    LIFT_LOOPS = "numba.core.transforms", "loop_lifting"
    UNROLL = "numba.core.untyped_passes", "MixedContainerUnroller.apply_transform"
    RECONSTRUCT_SSA = "numba.core.ssa", "_run_ssa"
    STRIP_PHIS = "numba.core.typed_passes", "PreLowerStripPhis._strip_phi_nodes"
    INLINE_FUNCTION = "numba.core.inline_closurecall", "InlineWorker.inline_ir"
    INLINE_CLOSURE = "numba.core.inline_closurecall", "inline_closure_call"
    FIND_ARRAY_CALL = "numba.core.inline_closurecall", "_find_arraycall"
    # Parallel loops and stencils
    COMPILE_KERNEL = "numba.parfors.parfor_lowering", "_create_gufunc_for_parfor_body"
    PARALLEL_STENCIL = "numba.stencils.stencilparfor", "StencilPass._mk_stencil_parfor"
    # Text of LLVM modules
    FORMAT_METADATA = "llvmlite.ir._utils", "_HasMetadata._stringify_metadata"
    FORMAT_BLOCK = "llvmlite.ir.values", "Block.descr"


Hooks = Dict[Seam, Hook]


class Layer(enum.IntEnum):
    """Order of the hooks of one function, from the innermost."""

    LINES, COVERAGE, COMPILATIONS = range(3)


_replacements: Dict[Seam, Replacement] = {}


def _subscribe(seam: Seam, layer: Layer, hook: Hook) -> None:
    module, path = seam.value
    *classes, name = path.split(".")
    owner = functools.reduce(getattr, classes, sys.modules[module])
    current = owner.__dict__[name]
    replacement = _replacements.get(seam) or _replacements.setdefault(seam, Replacement(current, len(Layer)))
    replacement.hooks[layer] = hook
    # Another thread may have replaced the function, or another tool may have replaced our replacement.
    if current is replacement.original:
        setattr(owner, name, replacement.function)


class Part:
    """Lines, coverage or compilations. A part that is on subscribes to its functions as soon as Numba is imported.

    `load` returns the hooks; it is called when Numba is complete, because Numba's modules import each other. `report`
    is called once the hooks are in place, or with the reason if they cannot be.
    """

    def __init__(self, layer: Layer, load: Callable[[], Hooks], report: Callable[[Optional[str]], None]) -> None:
        self._layer, self._load, self._report = layer, load, report
        self._watch: Optional[Watch] = None
        self.is_on = False
        #: True once the part's functions in all loaded modules have been replaced.
        self.is_ready = False
        self.failure: Optional[str] = None

    def is_active(self) -> bool:
        return self.is_on and self.is_ready and self.failure is None

    def start(self) -> None:
        """Starts the part; further calls have no effect."""
        if not self.is_on:
            self.failure = None
            self.is_on = True
            self._wait_for({"numba": self._begin})

    def stop(self) -> None:
        self.is_on = False
        self._stop_waiting()

    def check_imported(self) -> None:
        """Detects the end of an import that was in progress at the start."""
        watch = self._watch
        if watch is not None:
            watch.check_imported()

    def _wait_for(self, callbacks: Dict[str, Callable[[ModuleType], None]]) -> None:
        watch = self._watch = Watch(callbacks)
        watch.start()
        if not self.is_on or self.failure is not None:
            watch.stop()

    def _stop_waiting(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()

    def _begin(self, numba: ModuleType) -> None:
        # The user may have another package named `numba`.
        if not self.is_on or "numba.core.codegen" not in sys.modules:
            return
        hooks_by_module: Dict[str, Hooks] = {}
        try:
            with _without_collection():
                loaded_hooks = self._load()
            for seam, hook in loaded_hooks.items():
                hooks_by_module.setdefault(seam.value[0], {})[seam] = hook
        except Exception as error:
            self._fail(numba, error)
            return
        self._wait_for({name: functools.partial(self._use, hooks) for name, hooks in hooks_by_module.items()})
        if self.failure is None and not self.is_ready:
            self.is_ready = True
            self._report(None)

    def _use(self, hooks: Hooks, module: ModuleType) -> None:
        if self.failure is not None:
            return
        try:
            for seam, hook in hooks.items():
                _subscribe(seam, self._layer, hook)
        except Exception as error:
            self._fail(module, error)

    def _fail(self, module: ModuleType, error: Exception) -> None:
        is_expected = isinstance(error, Unsupported)
        self.failure = str(error) if is_expected else "%s: %s: %s" % (module.__name__, type(error).__name__, error)
        self._stop_waiting()
        self._report(self.failure)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Context without garbage collection. Our imports would be the last straw for a full collection: they follow those
    of Numba, whose objects all stay, and the pass over them takes several times as long as our imports."""
    # Another thread might change the collector's state meanwhile, or fork a child, where it would stay off.
    is_enabled = gc.isenabled() and len(sys._current_frames()) == 1
    if is_enabled:
        gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


def run_safely(consequence: str, function: Callable[..., Any], *args: Any) -> Any:
    """Returns the function's result; `None` if it fails, with the consequence in the log."""
    try:
        return function(*args)
    except Exception as error:
        _log.warn("%s: %s: %s" % (consequence, type(error).__name__, error))
        return None
