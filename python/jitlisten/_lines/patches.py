"""State of lines, as one of the parts of `_numba/seams.py`: whether they are on, and since when.

Numba's `flags` are unchanged, because debug flags change the code and are part of every symbol name.
"""

from __future__ import annotations

import os
import sys
from typing import Optional

from .. import _log
from .._numba import versions
from .._numba.cache_keys import CacheKey
from .._numba.seams import Hooks, Layer, Part

NOT_INSTALLED, NOT_IMPORTED = "not installed", "numba has not been imported"


def reason() -> Optional[str]:
    """Returns the reason why there are no lines; `None` if there are lines."""
    PART.check_imported()
    if PART.failure is not None:
        return PART.failure
    if not PART.is_on:
        return NOT_INSTALLED
    return None if PART.is_ready else NOT_IMPORTED


def _load() -> Hooks:
    versions.check(os.environ.get("JITLISTEN_LINES") == "force")
    from . import hooks

    return hooks.all_hooks()


def _report(failure: Optional[str]) -> None:
    if failure is not None:
        _log.warn("no lines: " + failure)
    else:
        _log.info("lines for numba %s" % versions.numba_version(sys.modules.get("numba")))


PART = Part(Layer.LINES, _load, _report)
# Change the number when names, locations or hashes change, because a cache would keep the old ones.
KEY = CacheKey("lines", "jitlisten-lines-4", PART.is_active)
