"""Python lines for the code that Numba compiles, and the same code, byte for byte.

`NUMBA_DEBUGINFO=1` gives lines, too, but of other code: it forbids inlining, keeps every variable in memory and checks
bounds. Here no compiler flag is touched. While Numba lowers a function, locations are attached to the LLVM
instructions, and nothing else; optimisation passes carry them along.

    install()   from now on, or from the moment Numba is imported
    remove()    for functions whose compilation begins later, no lines
    status()    whether it is active, and if not, why

`JITLISTEN_LINES=0` switches it off, and `force` on for Numba 0.56 (see versions.py). Nothing here raises: where
something is not as expected (a version of Numba that was not tried, say) there are no lines, and one line in the log.

    imports.py    runs a patch when a module of Numba has been imported
    patches.py    what is replaced in Numba
    cache_keys.py keeps code with lines and without apart in Numba's cache
    versions.py   for which versions
    names.py      what functions are called
    locations.py  what a location of Numba's says beside file and line
    inlined.py    what Numba inlines itself
    stencils.py   the lines of stencils
    returns.py    the lines of returns
    phis.py       the lines of copies where branches join
    builder.py    stands in for Numba's debug information builder: one function at a time
    metadata.py   the debug metadata of one LLVM module
    wrappers.py   functions that Numba generates around others
    verified.py   what LLVM refuses
    sources.py    which file a location names; keeps the text of notebook cells
    log.py        JITLISTEN_LOG
"""

from __future__ import annotations

import os
import sys
from typing import Dict, Optional

__all__ = ["install", "remove", "status"]


def install() -> None:
    """Gives lines to what Numba compiles from now on, in this process. Calling it again changes nothing."""
    from .. import _coverage

    # While coverage is measured, the code is not the one to profile.
    if os.environ.get("JITLISTEN_LINES") == "0" or _coverage.is_active():
        return
    try:
        from . import patches

        patches.install()
    except Exception as error:  # the program goes on without lines
        _say(error)


def remove() -> None:
    """Numba compiles functions again as if `install` had not been called."""
    try:
        from . import patches

        finder = _finder_until_numba()
        if finder is not None:
            sys.meta_path.remove(finder)  # type: ignore[arg-type]
        patches.remove()
    except Exception as error:
        _say(error)


def status() -> Dict[str, Optional[object]]:
    """`{"numba": version or None, "active": bool, "reason": why not, or None}`."""
    from . import patches, versions

    reason = patches.reason()
    if reason == patches.NOT_INSTALLED and _finder_until_numba() is not None:
        reason = patches.NOT_IMPORTED
    if os.environ.get("JITLISTEN_LINES") == "0" and reason is not None:
        reason = "JITLISTEN_LINES=0"
    return {"numba": versions.numba_version(sys.modules.get("numba")), "active": reason is None, "reason": reason}


def _finder_until_numba() -> Optional[object]:
    """The finder of `_site/sitecustomize.py`, while it waits for Numba."""
    return next((finder for finder in sys.meta_path if getattr(finder, "starts_jitlisten_lines", False)), None)


def _say(error: BaseException) -> None:
    try:
        from . import log

        log.warn("no lines: %s: %s" % (type(error).__name__, error))
    except Exception:
        pass
