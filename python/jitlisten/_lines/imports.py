"""Calls a function when a module has been imported: at once if it is there already.

A finder at the head of `sys.meta_path` looks at names only, and leaves the search to the finders behind it. What it
changes is the loader that they return, which exists for this one import: the loader's `exec_module` is ours for one
call.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Callable, Dict, Iterable, Optional

AfterImport = Callable[[ModuleType], None]


class Watch:
    """Waits for modules by name."""

    def __init__(self, after: Dict[str, AfterImport]) -> None:
        self._waiting = dict(after)

    def start(self) -> None:
        """Runs what is due, and waits for the rest."""
        for name in list(self._waiting):
            module = sys.modules.get(name)
            if module is not None:
                self._run(name, module)
        if self._waiting:
            sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Waits no more."""
        self._waiting.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Optional[Iterable[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        """Part of the import system's protocol."""
        if name not in self._waiting:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or isinstance(finder, Watch) or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                self._follow(name, spec.loader)
                return spec  # type: ignore[no-any-return]
        return None

    def _follow(self, name: str, loader: object) -> None:
        run = self._run
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # type: ignore[attr-defined]
            execute(module)
            run(name, module)

        try:
            loader.exec_module = exec_module  # type: ignore[attr-defined]
        except AttributeError:
            pass  # a loader without a dictionary, shared by all: the module stays as it is

    def _run(self, name: str, module: ModuleType) -> None:
        after = self._waiting.pop(name, None)
        if not self._waiting and self in sys.meta_path:
            sys.meta_path.remove(self)
        if after is not None:
            after(module)

