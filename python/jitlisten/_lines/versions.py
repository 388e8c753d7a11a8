"""The versions of Numba whose internals are known: for each, `ci/lines.sh` has compared the code."""

from __future__ import annotations

import re
from typing import Optional

OLDEST = (0, 56)
NEWEST = (0, 68)


def numba_version(numba: object) -> Optional[str]:
    """The version of a module `numba`, also while it is being imported."""
    version = getattr(numba, "__version__", None)
    return version if isinstance(version, str) else None


def why_unknown(version: Optional[str]) -> Optional[str]:
    """`None` for a version that is known."""
    if version is None:
        return "numba does not say its version"
    numbers = re.match(r"(\d+)\.(\d+)\.\d+$", version)
    if numbers is None:
        return "numba %s is not a release" % version
    if not OLDEST <= (int(numbers[1]), int(numbers[2])) <= NEWEST:
        return "numba %s is not known (%d.%d to %d.%d are)" % ((version,) + OLDEST + NEWEST)
    return None
