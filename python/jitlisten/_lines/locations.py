"""Facts for lines that an `ir.Loc` carries beside Numba's file and line: the inlined call by which a statement came, and the
location that is shown in its place.

Numba's own fields stay as they are. They are in messages, in `parallel_diagnostics()` and in the exceptions that
compiled code raises. The fields here are attributes that copies have, too, and that pickling leaves out: the pickled
text of a `with objmode` is part of the compiled code.
"""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, NamedTuple, Optional

FRAME, _SHOWN = "_jitlisten_inlined", "_jitlisten_shown"


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
    loc = shown(loc)
    return Place(loc.filename, loc.line, loc.__dict__.get(FRAME))


def outermost(loc: Any) -> Place:
    """The place in the function that everything was inlined into."""
    place = place_of(loc)
    while place.frame is not None:
        place = place.frame.call
    return place


def shown(loc: Any) -> Any:
    """The location that lines show in the place of this one."""
    return loc.__dict__.get(_SHOWN, loc)


def show_at(statement: Any, loc: Any) -> None:
    """Shows a statement at the location of another one."""
    statement.loc = _copied(statement.loc)
    statement.loc.__dict__[_SHOWN] = shown(loc)


def _getstate(loc: Any) -> Dict[str, Any]:
    """As if it had no attributes of ours."""
    return {name: value for name, value in loc.__dict__.items() if name not in (FRAME, _SHOWN)}


def _copied(loc: Any) -> Any:
    kind: Any = type(loc)
    made = kind.__new__(kind)
    made.__dict__.update(loc.__dict__)
    return made


def _deep_copied(loc: Any, memo: Dict[int, Any]) -> Any:
    """As `copy` does it for any object. Ours are shared."""
    made = memo[id(loc)] = _copied(loc)
    made.__dict__.update(copy.deepcopy(_getstate(loc), memo))
    return made


#: What `ir.Loc` gets.
METHODS: Dict[str, Callable[..., Any]] = {"__getstate__": _getstate, "__copy__": _copied, "__deepcopy__": _deep_copied}
