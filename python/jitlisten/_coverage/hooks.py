"""Coverage hooks in Numba's functions."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager, suppress
from traceback import walk_tb
from typing import Any, Iterator, List, Optional, Tuple

from numba.core.base import _wrap_impl
from numba.core.errors import ForceLiteralArg
from numba.core.postproc import PostProcessor, VariableLifetime
from numba.core.typeinfer import TypeInferer

from .._numba import inlined
from .._numba.seams import Hooks, Original, Seam
from . import lowering, marks, paths, unmeasured
from .patches import KEY, PART, TOO_EARLY
from .statements import SPACINGS, EdgeMarks, MarkStatement, Offsets, insert_marks, with_edge_blocks, without_edge_blocks

# Compilation


class _Compilation:
    """Compilation of one function, which includes what Numba inlines into it."""

    def __init__(self, spacing: Optional[int]) -> None:
        # Factor between labels without and with marks; `None` if the function gets no marks.
        self.spacing = spacing
        self.has_marks = False


class _Compiling(threading.local):
    innermost: Optional[_Compilation] = None
    # The error of the last function that failed without marks, too.
    numbas_error: Optional[BaseException] = None


_compiling = _Compiling()


@contextmanager
def _compilation(spacing: Optional[int]) -> Iterator[_Compilation]:
    outer = _compiling.innermost
    _compiling.innermost = compilation = _Compilation(spacing)
    try:
        yield compilation
    finally:
        _compiling.innermost = outer
        if outer is None:
            _compiling.numbas_error = None


def _spacing() -> Optional[int]:
    return SPACINGS[0] if _compiling.innermost is None else _compiling.innermost.spacing


def _compile(original: Original, typingctx: Any, targetctx: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Compiles a function without marks if it fails with marks and they may be the cause. If it fails again, the user
    gets the second error: the first one may contain labels and be indented differently. Otherwise, labels in another
    order may help."""
    handled, depths = sys.exc_info()[1], _error_depths(typingctx)
    with _compilation(SPACINGS[0]) as compilation:
        try:
            return original(typingctx, targetctx, func, *args, **kwargs)
        except ForceLiteralArg:
            raise
        except Exception as error:
            if not compilation.has_marks or _is_numbas_error(error, handled):
                raise
            failure = error
    _restore(depths)
    with _compilation(None):
        try:
            result = original(typingctx, targetctx, func, *args, **kwargs)
        except Exception as error:
            _compiling.numbas_error = error
            raise
    for spacing in SPACINGS[1:]:
        _restore(depths)
        with _compilation(spacing), suppress(Exception):
            return original(typingctx, targetctx, func, *args, **kwargs)
    unmeasured.add_name(_reason(failure), "%s.%s" % (func.__module__, func.__qualname__))
    return result


# Functions of Numba that infer the types of statements, and that compile operations. The result depends on the types of
# the operands, not on marks. Both call user code (`@overload`, `@intrinsic`) whose side effects must not happen twice.
_INDEPENDENT_OF_MARKS = frozenset({TypeInferer.propagate.__code__, _wrap_impl.__call__.__code__})


def _is_numbas_error(error: BaseException, handled: Optional[BaseException]) -> bool:
    """Returns true for an error that marks do not cause, and for that of a callee, which has been compiled twice
    already. `handled` is the exception that the program was handling before the compilation."""
    cause: Optional[BaseException] = error
    while cause is not None and cause is not handled:
        if cause is _compiling.numbas_error:
            return True
        if any(frame.f_code in _INDEPENDENT_OF_MARKS for frame, _ in walk_tb(cause.__traceback__)):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _error_depths(typingctx: Any) -> List[Tuple[Any, int]]:
    """Returns the indentation of Numba's error messages for each function. Numba increases it for good at each failed
    call."""
    return [(each, each._depth) for each in list(typingctx._globals.values()) if hasattr(each, "_depth")]


def _restore(depths: List[Tuple[Any, int]]) -> None:
    for function_type, depth in depths:
        function_type._depth = depth


def _reason(error: Exception) -> str:
    # Numba writes the cause below the name of the pass.
    return "%s: %s" % (type(error).__name__, " ".join(str(error).splitlines()[:2]))


# Marks


def _interpret(original: Original, interpreter: Any, bytecode: Any) -> Any:
    """Inserts the marks of a function when Numba has translated its bytecode."""
    path = paths.measured_path(interpreter.func_id.code.co_filename)
    compilation, spacing = _compiling.innermost, _spacing()
    if path is None or not PART.is_active() or spacing is None:
        return original(interpreter, bytecode)
    offsets, dispatch = Offsets(), interpreter._dispatch

    def dispatch_with_offset(instruction: Any, keywords: Any) -> Any:
        offsets.add(interpreter.loc, instruction.offset)
        return dispatch(instruction, keywords)

    interpreter._dispatch = dispatch_with_offset
    try:
        func_ir = original(interpreter, bytecode)
    finally:
        del interpreter._dispatch
    try:
        insert_marks(interpreter, func_ir, path, offsets, spacing)
    except Exception as error:
        identity = interpreter.func_id
        unmeasured.add_name(_reason(error), "%s.%s" % (identity.modname, identity.func_qualname))
        return func_ir
    if compilation is not None:
        compilation.has_marks = True
    return func_ir


def _reconstruct_ssa(original: Original, blocks: Any) -> Any:
    """Doubles the recursion limit. Numba recurses along a chain of blocks, which marks make up to twice as long."""
    limit = sys.getrecursionlimit()
    if not PART.is_active():
        return original(blocks)
    sys.setrecursionlimit(2 * limit)
    try:
        return original(blocks)
    finally:
        # Another thread may have set a limit of its own.
        if sys.getrecursionlimit() == 2 * limit:
            sys.setrecursionlimit(limit)


def _unroll(original: Original, unroller: Any, state: Any) -> Any:
    """Determines again which variables are in use. Blocks are renumbered before loops are unrolled, and with marks in
    the blocks between them, most get other numbers."""
    if PART.is_active():
        state.func_ir.variable_lifetime = VariableLifetime(state.func_ir.blocks)
    return original(unroller, state)


def _find_array_call(original: Original, func_ir: Any, block: Any) -> Any:
    """Hides the marks between a comprehension and the call that makes an array of it. Numba stops its search at the
    first statement that it does not know, and then makes a list first."""
    positions = [i for i, statement in enumerate(block.body) if not isinstance(statement, MarkStatement)]
    unmarked = block.copy()
    unmarked.body = [block.body[i] for i in positions]
    list_variable, position, keywords = original(func_ir, unmarked)
    return list_variable, positions[position], keywords


def _split_loop_entry(original: Original, numba_pass: Any, state: Any) -> Any:
    """Removes the blocks that were created for marks before Numba prepares loops for lifting: they change where a loop
    begins and ends."""
    spacing = _spacing()
    if spacing is not None:
        state.func_ir.blocks = without_edge_blocks(state.func_ir.blocks, spacing)
    return original(numba_pass, state)


def _lift_loops(original: Original, *args: Any, **kwargs: Any) -> Any:
    """Gives lifted loops, which are compiled on their own, their blocks for marks again."""
    main, lifted = original(*args, **kwargs)
    for loop in lifted:
        loop.func_ir.blocks = with_edge_blocks(loop.func_ir.blocks)
        loop.func_ir._reset_analysis_variables()
        PostProcessor(loop.func_ir).run()
    return main, lifted


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
    if isinstance(inst, MarkStatement):
        if function_lowering is not None:
            function_lowering.store(inst)
    elif isinstance(inst, EdgeMarks):
        if function_lowering is not None:
            function_lowering.store_on_edges(inst)
    elif function_lowering is None:
        original(lowerer, inst)
    else:
        block = lowerer.builder.block
        with function_lowering.on_exits(inst):
            original(lowerer, inst)
        function_lowering.mark_callers_of_raise(inst, block)


def _add_module(original: Original, library: Any, ir_module: Any) -> Any:
    """Gives the mark table of a function its symbol name."""
    lowering.finish(ir_module)
    return original(library, ir_module)


# Code in Numba's cache


class _Loading(threading.local):
    # Path of the function that is loaded from the cache.
    path: Optional[str] = None


_loading = _Loading()


def _load_object(original: Original, library_type: Any, codegen: Any, state: Any) -> Any:
    data = state[2]
    marks.register_all(b"".join(data) if isinstance(data, tuple) else data, _loading.path)
    return original(library_type, codegen, state)


def _load_overload(original: Original, self: Any, *args: Any, **kwargs: Any) -> Any:
    _loading.path = paths.measured_path(self._py_func.__code__.co_filename)
    try:
        return original(self, *args, **kwargs)
    except marks.Stale:
        return None
    finally:
        _loading.path = None


def all_hooks() -> Hooks:
    return {
        **KEY.hooks(),
        **inlined.hooks(PART.is_active),
        Seam.COMPILE_FUNCTION: _compile,
        Seam.INTERPRET: _interpret,
        Seam.SPLIT_LOOP_ENTRY: _split_loop_entry,
        Seam.LIFT_LOOPS: _lift_loops,
        Seam.RECONSTRUCT_SSA: _reconstruct_ssa,
        Seam.UNROLL: _unroll,
        Seam.FIND_ARRAY_CALL: _find_array_call,
        Seam.LOAD_OVERLOAD: _load_overload,
        Seam.LOAD_OBJECT: _load_object,
        Seam.ADD_MODULE: _add_module,
        Seam.LOWER_BLOCK: _lower_block,
        Seam.LOWER_STATEMENT: _lower_statement,
        Seam.LOWER_OBJECT_MODE: _lower_statement,
    }
