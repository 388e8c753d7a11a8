"""State of coverage, as one of the parts of `_numba/seams.py`: whether it is on, and since when."""

from __future__ import annotations

import gc
import sys
from typing import Optional

from .._numba import versions
from .._numba.cache_keys import CacheKey
from .._numba.seams import Hooks, Layer, Part

TOO_EARLY = "compiled before coverage.py started"


def install() -> None:
    """Starts to measure now, or when Numba is imported. Cannot be undone."""
    if not PART.is_on:
        _report_compiled()
        PART.start()


def _report_compiled() -> None:
    """Reports the functions that this process has already compiled, which have no marks."""
    dispatcher = sys.modules.get("numba.core.dispatcher")
    if dispatcher is None:
        return
    from . import unmeasured

    for candidate in gc.get_objects():
        if isinstance(candidate, dispatcher.Dispatcher) and candidate.overloads:
            function = candidate.py_func
            if not str(function.__module__).startswith("numba."):
                unmeasured.add_name(TOO_EARLY, "%s.%s" % (function.__module__, function.__qualname__))


def _load() -> Hooks:
    versions.check()
    from . import hooks

    return hooks.all_hooks()


def _report(failure: Optional[str]) -> None:
    if failure is not None:
        from . import unmeasured

        unmeasured.add_all("No compiled code is measured: " + failure)


PART = Part(Layer.COVERAGE, _load, _report)
# Change the number when marks or their names change, because a cache would keep the old ones. A compilation that began
# without marks has none at all.
KEY = CacheKey("marks", "jitlisten-coverage-5", PART.is_active)
