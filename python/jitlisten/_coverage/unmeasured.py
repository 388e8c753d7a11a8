"""Functions that cannot be measured: reported once, by name, with coverage.py's own warnings."""

from __future__ import annotations

from typing import Any, Dict, List, Set

_names_by_reason: Dict[str, List[str]] = {}
_general_reasons: List[str] = []
_reported: Set[str] = set()
_MAX_NAMES = 10


def add(reason: str, lowerer: Any) -> None:
    """Records a function that is compiled without marks."""
    description = lowerer.fndesc
    module = str(description.modname)
    if not module.startswith("numba."):
        add_name(reason, "%s.%s" % (module, description.qualname))


def add_name(reason: str, name: str) -> None:
    is_known = name in _reported or any(name in names for names in _names_by_reason.values())
    if not is_known:
        _names_by_reason.setdefault(reason, []).append(name)


def add_all(reason: str) -> None:
    """Records that nothing can be measured in this process."""
    _general_reasons.append(reason)


def take() -> List[str]:
    """Returns a message for each reason, with the functions that have not been reported yet."""
    messages = _general_reasons[:]
    _general_reasons.clear()
    for reason, names in _names_by_reason.items():
        if names:
            suffix = ", and %d more" % (len(names) - _MAX_NAMES) if len(names) > _MAX_NAMES else ""
            messages.append(
                "Compiled code that jitlisten cannot measure (%s): %s%s"
                % (reason, ", ".join(names[:_MAX_NAMES]), suffix)
            )
            _reported.update(names)
            names.clear()
    return messages
