"""Coverage of the code that Numba compiles, for coverage.py: lines and branches, as if it had run as Python.

While Numba lowers a function, one store for each line, or each way from one line to another, is written into it. So
the code is not
the code that runs otherwise: never measure time with it. `jitlisten.coverage` is the plugin of coverage.py.

    plan.py         which marks a function gets. Pure, over Numba's intermediate representation
    lowering.py     writes the stores
    loops.py        loops that store when they end
    marks.py        the bytes that they store to, and what each says; code in Numba's cache
    patches.py      what is replaced in Numba
    paths.py        which files
    infer.py        statements without code
    collect.py      adds what was marked to coverage.py's data
    unmeasured.py   what cannot be measured, by name

Locations of inlined calls come from `jitlisten._lines.locations`.
"""

from __future__ import annotations

from typing import Any

PLUGIN = "jitlisten.coverage"


def install_everywhere() -> None:
    """Every `Coverage` of this process has the plugin, as if its configuration named it: for `jitlisten coverage`."""
    from .._lines.imports import Watch

    Watch({"coverage.control": _add_plugin}).start()


def _add_plugin(module: Any) -> None:
    original = module.Coverage.__init__

    def __init__(self: Any, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        plugins = list(self.get_option("run:plugins") or [])
        if PLUGIN not in plugins:
            self.set_option("run:plugins", plugins + [PLUGIN])

    module.Coverage.__init__ = __init__


def is_active() -> bool:
    """Whether compiled code is measured in this process."""
    import sys

    patches = sys.modules.get(__name__ + ".patches")
    return patches is not None and patches.is_installed()
