"""Calls that Numba inlines itself: `inline='always'`, inner functions, NumPy functions of parallel code.

Their statements become the caller's, and keep the locations of the callee. Here each location gets, beside that, the
callee and the place of the call, so that it has a frame of its own, as what LLVM inlines has.

Which statements share a location shows in the pickled text of a `with objmode`, so locations are changed in their
places.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, Optional, Set

from numba.core import ir

from .locations import FRAME, Inlined, Place

_MOST_FRAMES = 64


def mark(blocks: Iterable[Any], frame: Inlined) -> None:
    """After the blocks of a callee have become part of a caller."""
    depth, place = 0, frame.call
    while place.frame is not None:
        depth, place = depth + 1, place.frame.call
    if depth > _MOST_FRAMES:
        return
    marked: Set[int] = set()
    rebased: Dict[Optional[int], Inlined] = {None: frame}

    def rebase(inner: Inlined) -> Inlined:
        """What had been inlined into the callee before is called from there."""
        found = rebased.get(id(inner))
        if found is None:
            whose = frame if inner.call.frame is None else rebase(inner.call.frame)
            found = rebased[id(inner)] = inner._replace(call=inner.call._replace(frame=whose))
        return found

    kept = []
    for block in blocks:
        for statement in block.body:
            for holder in (statement, getattr(statement, "value", None)):
                loc = getattr(holder, "loc", None) if isinstance(holder, (ir.Stmt, ir.Expr)) else None
                if isinstance(loc, ir.Loc) and id(loc) not in marked:
                    marked.add(id(loc))
                    inner = loc.__dict__.get(FRAME)
                    # Identities stay taken.
                    kept.append(inner)
                    loc.__dict__[FRAME] = frame if inner is None else rebase(inner)


def of_ir(callee_ir: Any, call: Place) -> Inlined:
    """A call of a function whose intermediate representation this is."""
    identity = callee_ir.func_id
    return Inlined(str(identity.modname), identity.func_qualname, identity.filename, identity.firstlineno, call)


def of_callee(callee: Any, caller_ir: Any, call: Place) -> Inlined:
    """A call of a function, or of what makes an inner function."""
    caller = caller_ir.func_id
    if hasattr(callee, "__code__"):
        code, module, name = callee.__code__, callee.__module__, callee.__qualname__
    else:
        code, module = callee.code, caller.modname
        # Python 3.11 and later.
        name = getattr(code, "co_qualname", None) or "%s.<locals>.%s" % (caller.func_qualname, code.co_name)
    return Inlined(str(module), name, code.co_filename, code.co_firstlineno, call)
