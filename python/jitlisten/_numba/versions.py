"""Supported versions of Numba. For each, the code with and without lines has been compared (`ci/lines.sh all`)."""

from __future__ import annotations

import re
import sys
from typing import Optional


class Unsupported(Exception):
    """The installed Numba is not supported; the message is the reason."""


COMPARED = frozenset(
    {
        (0, 56, 0),
        (0, 56, 2),
        (0, 56, 3),
        (0, 56, 4),
        (0, 57, 0),
        (0, 57, 1),
        (0, 58, 0),
        (0, 58, 1),
        (0, 59, 0),
        (0, 59, 1),
        (0, 60, 0),
        (0, 61, 0),
        (0, 61, 2),
        (0, 62, 0),
        (0, 62, 1),
        (0, 63, 0),
        (0, 63, 1),
        (0, 64, 0),
        (0, 65, 0),
        (0, 65, 1),
        (0, 66, 0),
        (0, 67, 0),
        (0, 68, 0),
        (0, 68, 1),
    }
)
# LLVM 11 (in Numba 0.56 only) aligns code by lengthening the preceding jumps, except at the start of a line, where it
# inserts `nop`s. With lines, the instructions are therefore the same, but their bytes differ. LLVM 12 removed this for
# that reason (D94542).
PADDED_DIFFERENTLY = (0, 56)


def numba_version(numba: object) -> Optional[str]:
    """Returns the version of a module `numba`, even while it is being imported."""
    version = getattr(numba, "__version__", None)
    return version if isinstance(version, str) else None


def unsupported_reason(version: Optional[str], force: bool) -> Optional[str]:
    """Returns `None` for a supported version that compiles to the same bytes with lines, otherwise the reason."""
    if version is None:
        return "numba does not say its version"
    parts = re.match(r"(\d+)\.(\d+)\.(\d+)$", version)
    if parts is None:
        return "unsupported Numba %s: not a release" % version
    release = (int(parts[1]), int(parts[2]), int(parts[3]))
    if release not in COMPARED:
        return "unsupported Numba %s: its code with lines has not been compared" % version
    if release[:2] == PADDED_DIFFERENTLY and not force:
        return "numba %s pads code that has lines otherwise (JITLISTEN_LINES=force accepts that)" % version
    return None


def check(force: bool = False) -> None:
    """Raises `Unsupported` if the imported Numba is not supported."""
    reason = unsupported_reason(numba_version(sys.modules.get("numba")), force)
    if reason is not None:
        raise Unsupported(reason)
