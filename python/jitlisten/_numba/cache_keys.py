"""Keeps code with lines, or with marks of coverage, apart from other code in Numba's cache.

A marker in the key distinguishes both kinds of code. Numba computes the key twice: before it compiles a function, and
to save it. Any thread may enable or disable lines in between. Each library, which is one compiled function, therefore
remembers the state in which it was created.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Optional

from .seams import Hooks, Original, Seam


class CacheKey:
    """A marker in the cache keys of code that was compiled while `is_on()` returned true."""

    def __init__(self, name: str, marker: str, is_on: Callable[[], bool]) -> None:
        self._attribute = "_jitlisten_has_" + name
        self.marker = marker
        self._is_on = is_on
        self._thread_state = threading.local()

    def hooks(self) -> Hooks:
        return {
            Seam.INIT_LIBRARY: self._init_library,
            Seam.CACHE_KEY: self._cache_key,
            Seam.SAVE_OVERLOAD: self._save_overload,
        }

    def was_on_for(self, library: Any) -> bool:
        """Returns true if the library was created while `is_on()` returned true."""
        return bool(getattr(library, self._attribute, False))

    def _init_library(self, original: Original, library: Any, *args: Any, **kwargs: Any) -> None:
        setattr(library, self._attribute, self._is_on())
        original(library, *args, **kwargs)

    def _cache_key(self, original: Original, codegen: Any) -> Any:
        key = original(codegen)
        saved: Optional[bool] = getattr(self._thread_state, "saved", None)
        has_marker = self._is_on() if saved is None else saved
        return tuple(key) + (self.marker,) if has_marker else key

    def _save_overload(self, original: Original, cache: Any, sig: Any, data: Any) -> Any:
        thread_state, previous = self._thread_state, getattr(self._thread_state, "saved", None)
        # `data` is the code of a function, or a library with code generated around one.
        thread_state.saved = self.was_on_for(getattr(data, "library", data))
        try:
            return original(cache, sig, data)
        finally:
            thread_state.saved = previous
