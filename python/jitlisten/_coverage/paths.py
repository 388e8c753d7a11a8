"""Files whose lines are measured: all existing files and modules in archives, except Numba's own. coverage.py chooses
among them when it collects.
"""

from __future__ import annotations

import os
from typing import Dict, Optional

import numba

from .marks import source_file

try:
    # Looks for a relative name in the current directory and in `sys.path`, and keeps the result.
    from coverage.files import canonical_filename
except ImportError:
    canonical_filename = os.path.abspath

_NUMBA = os.path.join(os.path.dirname(os.path.abspath(numba.__file__)), "")
# Without missing files: the program may create them later.
_measured_paths: Dict[str, Optional[str]] = {}


def measured_path(filename: str) -> Optional[str]:
    """Returns the absolute path of a file; `None` for Numba's own files, for missing files and for text that is not in
    a file."""
    if filename.startswith("<"):
        return None
    if filename not in _measured_paths:
        path = os.path.abspath(filename) if os.path.isabs(filename) else str(canonical_filename(filename))
        if path.startswith(_NUMBA):
            _measured_paths[filename] = None
        elif source_file(path) is not None:
            _measured_paths[filename] = path
    return _measured_paths.get(filename)


def is_missing(filename: str) -> bool:
    """Returns true for the name of a file that does not exist."""
    return not filename.startswith("<") and measured_path(filename) is None and filename not in _measured_paths
