"""Calls that Numba inlines itself: `inline='always'`, inner functions, NumPy functions in parallel code.

Their statements become the caller's, but keep the locations of the callee. This module adds the callee and the call
site to each location, so that the call has a frame of its own, like a call that LLVM inlines.

Locations are modified in place, because the pickled text of a `with objmode` shows which statements share a location.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Optional, Set

from numba.core import ir

from . import locations
from .locations import FRAME, Inlined, SourceLocation
from .seams import Hooks, Original, Seam, run_safely

_MAX_FRAMES = 64
_CONSEQUENCE = "an inlined call has no frame"
# Predicates of lines and of coverage, which return true while that part needs the frames.
_is_needed: List[Callable[[], bool]] = []


def hooks(is_needed: Callable[[], bool]) -> Hooks:
    """Returns the hooks of a part that needs the frames while `is_needed()` returns true."""
    locations.add_methods(ir.Loc)
    if is_needed not in _is_needed:
        _is_needed.append(is_needed)
    return {Seam.INLINE_FUNCTION: _inline_function, Seam.INLINE_CLOSURE: _inline_closure}


def _inline_function(
    original: Original, self: Any, caller_ir: Any, block: Any, i: int, callee_ir: Any, *args: Any, **kwargs: Any
) -> Any:
    call = _find_call(block, i)
    result = original(self, caller_ir, block, i, callee_ir, *args, **kwargs)
    if call is not None:
        run_safely(_CONSEQUENCE, lambda: mark_call(result[1].values(), call_of_ir(callee_ir, call)))
    return result


def _inline_closure(
    original: Original, func_ir: Any, glbls: Any, block: Any, i: int, callee: Any, *args: Any, **kwargs: Any
) -> Any:
    call = _find_call(block, i)
    result = original(func_ir, glbls, block, i, callee, *args, **kwargs)
    if call is not None:
        run_safely(_CONSEQUENCE, lambda: mark_call(result[0].values(), call_of_callee(callee, func_ir, call)))
    return result


def _find_call(block: Any, index: int) -> Optional[SourceLocation]:
    """Returns the location of the call that will be replaced, if a part needs it."""
    call: Optional[SourceLocation] = None
    if any(is_needed() for is_needed in _is_needed):
        call = run_safely(_CONSEQUENCE, lambda: locations.source_location(block.body[index].loc))
    return call


def mark_call(blocks: Iterable[Any], frame: Inlined) -> None:
    """Marks the blocks of a callee that have become part of a caller."""
    depth, call = 0, frame.call
    while call.frame is not None:
        depth, call = depth + 1, call.frame.call
    if depth > _MAX_FRAMES:
        return
    marked: Set[int] = set()
    rebased: Dict[Optional[int], Inlined] = {None: frame}

    def rebase(inner: Inlined) -> Inlined:
        """Returns a call that was inlined into the callee earlier, below the new call."""
        result = rebased.get(id(inner))
        if result is None:
            outer = frame if inner.call.frame is None else rebase(inner.call.frame)
            result = rebased[id(inner)] = inner._replace(call=inner.call._replace(frame=outer))
        return result

    kept_calls = []
    for block in blocks:
        for statement in block.body:
            for holder in (statement, getattr(statement, "value", None)):
                loc = getattr(holder, "loc", None) if isinstance(holder, (ir.Stmt, ir.Expr)) else None
                if isinstance(loc, ir.Loc) and id(loc) not in marked:
                    marked.add(id(loc))
                    inner = loc.__dict__.get(FRAME)
                    # Kept alive, so that identities stay unique.
                    kept_calls.append(inner)
                    loc.__dict__[FRAME] = frame if inner is None else rebase(inner)


def call_of_ir(callee_ir: Any, call: SourceLocation) -> Inlined:
    """Describes the call of a function with this intermediate representation."""
    identity = callee_ir.func_id
    return Inlined(str(identity.modname), identity.func_qualname, identity.filename, identity.firstlineno, call)


def call_of_callee(callee: Any, caller_ir: Any, call: SourceLocation) -> Inlined:
    """Describes the call of a function, or of the expression that makes an inner function."""
    caller = caller_ir.func_id
    if hasattr(callee, "__code__"):
        code, module, name = callee.__code__, callee.__module__, callee.__qualname__
    else:
        code, module = callee.code, caller.modname
        # Python 3.11 and later have `co_qualname`.
        name = getattr(code, "co_qualname", None) or "%s.<locals>.%s" % (caller.func_qualname, code.co_name)
    return Inlined(str(module), name, code.co_filename, code.co_firstlineno, call)
