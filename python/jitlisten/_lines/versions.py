"""The versions of Numba whose internals are known: of each, the code has been compared (`ci/lines.sh all`)."""

from __future__ import annotations

import re
from typing import Optional

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
# LLVM 11 (Numba 0.56 alone) makes jumps longer to align what follows, except where a line begins: there it takes
# `nop`s. With lines the instructions are the same, and their bytes are not. LLVM 12 gave that up, because of this
# (D94542).
PADDED_OTHERWISE = (0, 56)


def numba_version(numba: object) -> Optional[str]:
    """The version of a module `numba`, also while it is being imported."""
    version = getattr(numba, "__version__", None)
    return version if isinstance(version, str) else None


def why_not(version: Optional[str], force: bool) -> Optional[str]:
    """`None` for a version that is known, and compiles to the same bytes with lines."""
    if version is None:
        return "numba does not say its version"
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)$", version)
    if numbers is None:
        return "unsupported Numba %s: not a release" % version
    number = (int(numbers[1]), int(numbers[2]), int(numbers[3]))
    if number not in COMPARED:
        return "unsupported Numba %s: its code with lines has not been compared" % version
    if number[:2] == PADDED_OTHERWISE and not force:
        return "numba %s pads code that has lines otherwise (JITLISTEN_LINES=force accepts that)" % version
    return None
