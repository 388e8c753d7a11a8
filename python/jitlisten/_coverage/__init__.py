"""Coverage of code compiled by Numba, for coverage.py: the same lines and branches as if it ran as Python.

What coverage.py measures is a function of the bytecode that ran. So when Numba has translated a function's bytecode, a
statement is inserted for each step from one line to the next. Numba compiles it to a store. The code therefore differs
from the code that runs without coverage: never measure time with it. It may have line tables, for debuggers.
`jitlisten.coverage` is the plugin of coverage.py.

    bytecode.py     lines and steps of a function, from its bytecode
    statements.py   inserts the steps into Numba's intermediate representation
    lowering.py     emits the stores
    loops.py        finds code in which stores are expensive
    marks.py        the bytes that are stored to, and their meaning; code in Numba's cache
    patches.py      whether coverage is on
    hooks.py        hooks in Numba's functions (`_numba/seams.py`)
    paths.py        measured files
    collect.py      adds the marks to coverage.py's data
    unmeasured.py   names of functions that cannot be measured

`jitlisten._numba.inlined` provides the calls that an exception leaves.
"""

from __future__ import annotations

from typing import Any

PLUGIN = "jitlisten.coverage"
_watch: Any = None


def install_everywhere() -> None:
    """Adds the plugin to every `Coverage` of this process, as if the configuration named the plugin. For `jitlisten
    coverage`."""
    global _watch
    from .._numba.imports import Watch

    _watch = Watch({"coverage.control": _add_plugin})
    _watch.start()


def _add_plugin(module: Any) -> None:
    original = module.Coverage.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        plugins = list(self.get_option("run:plugins") or [])
        if PLUGIN not in plugins:
            self.set_option("run:plugins", plugins + [PLUGIN])

    module.Coverage.__init__ = __init__
