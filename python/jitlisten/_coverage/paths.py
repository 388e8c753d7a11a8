"""Files whose lines are measured: all that exist, except Numba's own. coverage.py chooses among them when it
collects."""

from __future__ import annotations

import os
from typing import Dict, Optional

import numba

_NUMBA = os.path.join(os.path.dirname(os.path.abspath(numba.__file__)), "")
_known: Dict[str, Optional[str]] = {}


def measured(filename: str) -> Optional[str]:
    """The absolute path of a file; `None` for Numba's own and for text that is in no file."""
    if filename in _known:
        return _known[filename]
    path: Optional[str] = os.path.abspath(filename)
    if filename.startswith(("<", _NUMBA)) or path is None or path.startswith(_NUMBA) or not os.path.isfile(path):
        path = None
    _known[filename] = path
    return path
