"""Python lines for code compiled by Numba, without changing a byte of the code.

`NUMBA_DEBUGINFO=1` also provides lines, but for different code: it prevents inlining, keeps every variable in memory
and checks bounds. This package changes no compiler flag. While Numba lowers a function, it only attaches locations to
the LLVM instructions; optimisation passes preserve them.

    install()   adds lines from now on, or once Numba is imported
    remove()    stops adding lines to functions whose compilation begins later
    status()    whether lines are active, and the reason if not

`JITLISTEN_LINES=0` disables lines, and `force` enables them for Numba 0.56 (see `_numba/versions.py`). Nothing here
raises. If something is unexpected, such as an untested version of Numba, there are no lines, and one message in the
log.

    patches.py    whether lines are on
    hooks.py      hooks in Numba's functions (`_numba/seams.py`)
    names.py      names of functions
    stencils.py   lines of stencils
    returns.py    lines of returns
    phis.py       lines of copies where branches join
    builder.py    replacement for Numba's debug information builder, for one function
    metadata.py   debug metadata of one LLVM module
    wrappers.py   functions that Numba generates around others
    verified.py   modules that LLVM rejects
    sources.py    files that locations refer to; saved sources of notebook cells
"""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, Optional

__all__ = ["install", "remove", "status"]


def install() -> None:
    """Adds lines to code that Numba compiles from now on, in this process. Further calls have no effect."""
    if os.environ.get("JITLISTEN_LINES") == "0":
        return
    try:
        from . import patches

        patches.PART.start()
    except Exception as error:  # the program continues without lines
        _log_failure(error)


def remove() -> None:
    """Makes Numba compile functions again as if `install` had not been called."""
    try:
        from . import patches

        finder = _waiting_finder()
        if finder is not None:
            finder.starts_jitlisten_lines = False
        patches.PART.stop()
    except Exception as error:
        _log_failure(error)


def status() -> Dict[str, Optional[object]]:
    """Returns `{"numba": version or None, "active": bool, "reason": reason if inactive, or None}`."""
    from .._numba import versions
    from . import patches

    reason = patches.reason()
    if reason == patches.NOT_INSTALLED and _waiting_finder() is not None:
        reason = patches.NOT_IMPORTED
    if os.environ.get("JITLISTEN_LINES") == "0" and reason is not None:
        reason = "JITLISTEN_LINES=0"
    return {"numba": versions.numba_version(sys.modules.get("numba")), "active": reason is None, "reason": reason}


def _waiting_finder() -> Any:
    """Returns the finder of `_site/sitecustomize.py`, if it is still waiting for Numba."""
    return next((finder for finder in sys.meta_path if getattr(finder, "starts_jitlisten_lines", False)), None)


def _log_failure(error: BaseException) -> None:
    try:
        from .. import _log

        _log.warn("no lines: %s: %s" % (type(error).__name__, error))
    except Exception:
        pass
