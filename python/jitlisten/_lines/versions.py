"""The versions of Numba whose internals are known: for each, `ci/lines.sh` has compared the code."""

from __future__ import annotations

import re
from typing import Optional

OLDEST = (0, 56)
# LLVM 11 (Numba 0.56 alone) makes jumps longer to align what follows, except where a line begins: there it takes `nop`s. With
# lines the instructions are the same, and their bytes are not. LLVM 12 gave that up, because of this (D94542).
PADDED_OTHERWISE = (0, 56)
NEWEST = (0, 68)


def numba_version(numba: object) -> Optional[str]:
    """The version of a module `numba`, also while it is being imported."""
    version = getattr(numba, "__version__", None)
    return version if isinstance(version, str) else None


def why_not(version: Optional[str], force: bool) -> Optional[str]:
    """`None` for a version that is known, and compiles to the same bytes with lines."""
    if version is None:
        return "numba does not say its version"
    numbers = re.match(r"(\d+)\.(\d+)\.\d+$", version)
    if numbers is None:
        return "numba %s is not a release" % version
    number = (int(numbers[1]), int(numbers[2]))
    if number == PADDED_OTHERWISE and not force:
        return "numba %s pads code that has lines otherwise (JITLISTEN_LINES=force accepts that)" % version
    if not OLDEST <= number <= NEWEST:
        return "numba %s is not known (%d.%d to %d.%d are)" % ((version,) + OLDEST + NEWEST)
    return None
