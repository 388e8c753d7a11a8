"""Modules that LLVM refuses: an exception, as without lines.

Numba verifies each module, and raises an exception for a bad one: by an `@intrinsic` of the user's, say. A module with
debug information is verified by LLVM, too, while it is read, and there a bad one ends the process. LLVM 16 and later
leave that to Numba, if an option says so. For those before, a copy without debug information is verified first, where
code of others than Numba writes LLVM's.
"""

from __future__ import annotations

import weakref
from typing import Any, List

from llvmlite import binding

from numba.core import cgutils

from .metadata import lines_of, text_without

_OPTION_SINCE = 16
_IMPLEMENTATIONS = ("functions", "getattrs", "setattrs", "casts", "constants")
_CONVERSIONS = ("_boxers", "_unboxers", "_reflectors")


def leave_to_numba() -> None:
    """Sets the option; it stays."""
    if binding.llvm_version_info[0] >= _OPTION_SINCE:
        binding.set_option("jitlisten", "-disable-auto-upgrade-debug-info")


def would_end_the_process(module: Any) -> bool:
    """Whether a module must not be read with debug information."""
    if binding.llvm_version_info[0] >= _OPTION_SINCE or lines_of(module) is None or not _extensions.are_there():
        return False
    try:
        binding.parse_assembly(cgutils.normalize_ir_text(text_without(module))).verify()
    except RuntimeError:
        return True
    return False


class _Extensions:
    """Functions that write LLVM's code and are not Numba's."""

    def __init__(self) -> None:
        self._found = False
        # By registry and kind.
        self._seen: "weakref.WeakKeyDictionary[Any, List[int]]" = weakref.WeakKeyDictionary()

    def are_there(self) -> bool:
        if not self._found:
            # Those import what imports this.
            from numba.core import pythonapi
            from numba.core.registry import cpu_target

            conversions = [
                function for name in _CONVERSIONS for function in getattr(pythonapi, name).functions.values()
            ]
            registries = list(cpu_target.target_context._registries)
            self._found = any(map(_is_foreign, conversions)) or any(map(self._is_in, registries))
        return self._found

    def _is_in(self, registry: Any) -> bool:
        """Looks at what is new."""
        seen = self._seen.setdefault(registry, [0] * len(_IMPLEMENTATIONS))
        found = False
        for at, kind in enumerate(_IMPLEMENTATIONS):
            entries = getattr(registry, kind)
            if len(entries) != seen[at]:
                found = found or any(_is_foreign(entry[0]) for entry in entries[seen[at] :])
                seen[at] = len(entries)
        return found


_extensions = _Extensions()


def _is_foreign(function: Any) -> bool:
    return not str(getattr(function, "__module__", "")).startswith("numba.")
