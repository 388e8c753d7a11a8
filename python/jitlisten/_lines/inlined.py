"""Calls that Numba inlines itself: `inline='always'`, inner functions, NumPy functions of parallel code.

Their statements become the caller's, and keep the locations of the callee. Here each location gets, beside that, the
callee and the place of the call, so that it has a frame of its own, as what LLVM inlines has.

It is an attribute of `ir.Loc` that copies have, too, and that pickling leaves out: the pickled text of a `with objmode`
is part of the compiled code. There, also which statements share a location shows, so locations are changed in their
places.
"""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, Iterable, NamedTuple, Optional, Set

from numba.core import ir

_ATTRIBUTE = "_jitlisten_inlined"
_MOST_FRAMES = 64


class Inlined(NamedTuple):
    """A call that is not there any more."""

    module: str
    name: str
    filename: str
    # Of the first decorator, if there is one.
    first: int
    call: "Place"


class Place(NamedTuple):
    """Where a statement is, and with which call it came there: with none, it is the function's own."""

    filename: str
    line: int
    frame: Optional[Inlined]


def place_of(loc: Any) -> Place:
    return Place(loc.filename, loc.line, loc.__dict__.get(_ATTRIBUTE))


def outermost(loc: Any) -> Place:
    """The place in the function that everything was inlined into."""
    place = place_of(loc)
    while place.frame is not None:
        place = place.frame.call
    return place


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
                    inner = loc.__dict__.get(_ATTRIBUTE)
                    # Identities stay taken.
                    kept.append(inner)
                    loc.__dict__[_ATTRIBUTE] = frame if inner is None else rebase(inner)


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


# --- for `ir.Loc` -----------------------------------------------------------------------------------------------------


def getstate(loc: Any) -> Dict[str, Any]:
    """As if it had no attribute of ours."""
    return {name: value for name, value in loc.__dict__.items() if name != _ATTRIBUTE}


def _empty(loc: Any) -> Any:
    kind: Any = type(loc)
    return kind.__new__(kind)


def copied(loc: Any) -> Any:
    made = _empty(loc)
    made.__dict__.update(loc.__dict__)
    return made


def deep_copied(loc: Any, memo: Dict[int, Any]) -> Any:
    """As `copy` does it for any object."""
    made = _empty(loc)
    memo[id(loc)] = made
    frame = loc.__dict__.get(_ATTRIBUTE)
    made.__dict__.update(copy.deepcopy(getstate(loc), memo))
    if frame is not None:
        made.__dict__[_ATTRIBUTE] = frame
    return made


METHODS: Dict[str, Callable[..., Any]] = {"__getstate__": getstate, "__copy__": copied, "__deepcopy__": deep_copied}
