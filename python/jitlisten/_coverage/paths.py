"""Files whose lines are measured: all existing files and modules in archives, except Numba's own. coverage.py chooses
among them when it collects.
"""

from __future__ import annotations

import os
from typing import Dict, Optional

import numba

from .marks import source_file

_NUMBA = os.path.join(os.path.dirname(os.path.abspath(numba.__file__)), "")
_measured_paths: Dict[str, Optional[str]] = {}


def measured_path(filename: str) -> Optional[str]:
    """Returns the absolute path of a file; `None` for Numba's own files and for text that is not in a file."""
    if filename in _measured_paths:
        return _measured_paths[filename]
    path: Optional[str] = os.path.abspath(filename)
    if filename.startswith(("<", _NUMBA)) or path is None or path.startswith(_NUMBA) or source_file(path) is None:
        path = None
    _measured_paths[filename] = path
    return path
