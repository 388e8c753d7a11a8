"""Data that an `ir.Loc` carries in addition to Numba's file and line: the inlined call that a statement comes from, and
the location that is shown in its place.

Numba's own fields are unchanged. They appear in messages, in `parallel_diagnostics()` and in the exceptions that
compiled code raises. Our fields are attributes that are copied but not pickled, because the pickled text of a `with
objmode` is part of the compiled code.
"""

from __future__ import annotations

import copy
from typing import Any, Dict, NamedTuple, Optional

FRAME, _SHOWN = "_jitlisten_inlined", "_jitlisten_shown"


class Inlined(NamedTuple):
    """A call that was inlined."""

    module: str
    name: str
    filename: str
    # Line of the first decorator, if there is one.
    first: int
    call: "SourceLocation"


class SourceLocation(NamedTuple):
    """Line of a statement, and the inlined call that it comes from. Without a call, it is the function's own."""

    filename: str
    line: int
    frame: Optional[Inlined]


def source_location(loc: Any) -> SourceLocation:
    """Returns the line that line tables show."""
    return own_location(shown(loc))


def own_location(loc: Any) -> SourceLocation:
    """Returns the statement's own line, which coverage measures, wherever line tables show the statement."""
    return SourceLocation(loc.filename, loc.line, loc.__dict__.get(FRAME))


def outermost(loc: Any) -> SourceLocation:
    """Returns the location in the function that everything was inlined into."""
    source = source_location(loc)
    while source.frame is not None:
        source = source.frame.call
    return source


def shown(loc: Any) -> Any:
    """Returns the location that line tables show in place of this one."""
    return loc.__dict__.get(_SHOWN, loc)


def show_at(statement: Any, loc: Any) -> None:
    """Shows a statement at the location of another one."""
    statement.loc = _copy_location(statement.loc)
    statement.loc.__dict__[_SHOWN] = shown(loc)


def _getstate(loc: Any) -> Dict[str, Any]:
    """Returns the state without our attributes."""
    return {name: value for name, value in loc.__dict__.items() if name not in (FRAME, _SHOWN)}


def _copy_location(loc: Any) -> Any:
    loc_type: Any = type(loc)
    result = loc_type.__new__(loc_type)
    result.__dict__.update(loc.__dict__)
    return result


def _deep_copy_location(loc: Any, memo: Dict[int, Any]) -> Any:
    """Copies a location as `copy` does, but shares our attributes."""
    result = memo[id(loc)] = _copy_location(loc)
    result.__dict__.update(copy.deepcopy(_getstate(loc), memo))
    return result


def add_methods(loc_type: Any) -> None:
    """Adds methods for copying to `ir.Loc`; further calls have no effect."""
    methods = {"__getstate__": _getstate, "__copy__": _copy_location, "__deepcopy__": _deep_copy_location}
    for name, method in methods.items():
        if loc_type.__dict__.get(name, method) is not method:
            raise RuntimeError("%s has %s of its own" % (loc_type.__name__, name))
        setattr(loc_type, name, method)
