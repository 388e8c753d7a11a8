"""What cannot be measured, by name: reported once, with coverage.py's own warnings."""

from __future__ import annotations

from typing import Any, Dict, List, Set

_found: Dict[str, List[str]] = {}
_nothing: List[str] = []
_reported: Set[str] = set()
_MOST_NAMES = 10


def add(why: str, lowerer: Any) -> None:
    """A function that is compiled without marks."""
    description = lowerer.fndesc
    module = str(description.modname)
    if not module.startswith("numba."):
        add_name(why, "%s.%s" % (module, description.qualname))


def add_name(why: str, name: str) -> None:
    names = _found.setdefault(why, [])
    if name not in _reported and name not in names:
        names.append(name)


def add_all(why: str) -> None:
    """Nothing can be measured in this process."""
    _nothing.append(why)


def take() -> List[str]:
    """A sentence for each reason, of what has not been reported yet."""
    said = _nothing[:]
    _nothing.clear()
    for why, names in _found.items():
        if names:
            more = ", and %d more" % (len(names) - _MOST_NAMES) if len(names) > _MOST_NAMES else ""
            said.append(
                "Compiled code that jitlisten cannot measure (%s): %s%s" % (why, ", ".join(names[:_MOST_NAMES]), more)
            )
            _reported.update(names)
            names.clear()
    return said
