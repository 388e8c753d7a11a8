"""Keeps code with lines, or with marks of coverage, apart from other code in Numba's cache.

A word in the key does that. Numba asks for the key twice: before it compiles a function, and to save it. Lines may be
switched on or off in between, in any thread, so each library, which is one compiled function, remembers what it was
begun with.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Optional


class CacheKey:
    """One word in the keys of code that was compiled while `is_on()`."""

    def __init__(self, name: str, is_on: Callable[[], bool]) -> None:
        self._attribute = "_jitlisten_has_" + name
        self._is_on = is_on
        self._of_thread = threading.local()

    def creating(self, original: Callable[..., None]) -> Callable[..., None]:
        """Replaces `numba.core.codegen.CodeLibrary.__init__`."""

        def __init__(library: Any, *arguments: Any, **named: Any) -> None:
            setattr(library, self._attribute, self._is_on())
            original(library, *arguments, **named)

        return __init__

    def is_in(self, library: Any) -> bool:
        """Returns whether the library was begun in this state."""
        return bool(getattr(library, self._attribute, False))

    def has_word(self) -> bool:
        """For a key that this thread makes now."""
        saved: Optional[bool] = getattr(self._of_thread, "saved", None)
        return self._is_on() if saved is None else saved

    def saving(self, original: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
        """Replaces `numba.core.caching.Cache.save_overload`."""

        def save_overload(cache: Any, sig: Any, data: Any) -> Any:
            mine, before = self._of_thread, getattr(self._of_thread, "saved", None)
            # The code of a function, or a library with what is generated around one.
            mine.saved = self.is_in(getattr(data, "library", data))
            try:
                return original(cache, sig, data)
            finally:
                mine.saved = before

        return save_overload
