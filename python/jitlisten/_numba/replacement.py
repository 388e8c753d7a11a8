"""Replacements for functions of other packages, and callbacks of the interpreter, with weak references to our code.

While Python ends, it collects garbage several times. Parts of llvmlite, finders, and callbacks of `os.register_at_fork`
stay until the last time. If they held our hooks, all of Numba would stay, too, and another collection would visit its
objects (30 ms). A function holds the globals of its module, so this module must not refer to the hooks.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, List, Optional
from weakref import ref

Hook = Callable[..., Any]


class Replacement:
    """A function that calls the hooks around the original; only the original once this object is gone."""

    def __init__(self, original: Any, hook_count: int) -> None:
        self.original = original
        self.hooks: List[Optional[Hook]] = [None] * hook_count
        reference = ref(self)
        is_class_method = isinstance(original, classmethod)
        function: Any = original.__func__ if is_class_method else original

        @functools.wraps(function)
        def call_hooks(*args: Any, **kwargs: Any) -> Any:
            call, previous = function, None
            replacement = reference()
            for hook in replacement.hooks if replacement is not None else ():
                # Lines and coverage share the hooks of inlined.py.
                if hook is not None and hook is not previous:
                    call, previous = functools.partial(hook, call), hook
            return call(*args, **kwargs)

        self.function: Any = classmethod(call_hooks) if is_class_method else call_hooks


def call_weakly(function: Callable[[], None]) -> Callable[[], None]:
    """Returns a function that calls `function` while its module keeps it."""
    reference = ref(function)

    def call() -> None:
        current = reference()
        if current is not None:
            current()

    return call
