"""Handles modules that LLVM rejects, so that they raise an exception, as they do without lines.

Numba verifies each module, and raises an exception for an invalid one. A user's `@intrinsic` may produce one, and so
does Numba itself (two `with objmode` blocks, before 0.62). LLVM additionally verifies a module with debug information
while it reads it. An invalid module then aborts the process, and invalid debug information prints a line on stderr.

LLVM 16 and later skip this verification while an option is set. The option affects all modules, including those with
Numba's own debug information, so it is set only while one of our modules is passed to LLVM. Before LLVM 16, the module
is first parsed and verified without debug information.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator

from llvmlite import binding
from numba.core import cgutils

_HAS_OPTION = binding.llvm_version_info[0] >= 16


def may_have_lines(module: Any) -> bool:
    """Returns true if LLVM accepts the complete module with debug information."""
    if _HAS_OPTION:
        return True
    try:
        # Use a separate context. Otherwise, types would get other names in the module that is compiled.
        context = binding.create_context()
        binding.parse_assembly(cgutils.normalize_ir_text(str(module)), context).verify()
    except Exception:  # Numba will report it, too
        return False
    return True


@contextmanager
def without_verification() -> Iterator[None]:
    """Context in which LLVM does not verify a module with lines while it reads it."""
    if not _HAS_OPTION:
        yield
        return
    _set_option(1)
    try:
        yield
    finally:
        _set_option(0)


def _set_option(value: int) -> None:
    binding.set_option("jitlisten", "-disable-auto-upgrade-debug-info=%d" % value)
