"""Modules that LLVM refuses: an exception, as without lines.

Numba verifies each module and raises an exception for a bad one: an `@intrinsic` of the user's may make it, and Numba
itself does (two `with objmode` blocks, before 0.62). LLVM also verifies a module while it reads it, if it has debug
information. A bad one then ends the process, and bad debug information is a line on stderr.

LLVM 16 and later leave that out while an option is set. It holds for all modules, those with debug information of
Numba's included, so it is set only while one of ours is handed over. Before LLVM 16, the module is read and verified
without debug information first.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator

from llvmlite import binding

from numba.core import cgutils

_HAS_OPTION = binding.llvm_version_info[0] >= 16


def may_have_lines(module: Any) -> bool:
    """Returns whether LLVM accepts the complete module with debug information."""
    if _HAS_OPTION:
        return True
    try:
        # A context of its own: types would have other names in the module that is compiled.
        context = binding.create_context()
        binding.parse_assembly(cgutils.normalize_ir_text(str(module)), context).verify()
    except Exception:  # Numba will meet it, too
        return False
    return True


@contextmanager
def left_to_numba() -> Iterator[None]:
    """While a module with lines is handed over."""
    if not _HAS_OPTION:
        yield
        return
    _set(1)
    try:
        yield
    finally:
        _set(0)


def _set(value: int) -> None:
    binding.set_option("jitlisten", "-disable-auto-upgrade-debug-info=%d" % value)
