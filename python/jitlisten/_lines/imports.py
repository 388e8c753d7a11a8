"""Calls a function when a module has been imported: at once if it is there already.

A finder at the head of `sys.meta_path` looks at names only, and leaves the search to the finders after it. What it
changes is the loader that they return, which exists for this one import: the loader's `exec_module` is ours for one
call. Several watches may wait for one module.
"""

from __future__ import annotations

import sys
from contextlib import suppress
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
        self.look_again()
        if self._waiting:
            sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Waits no more."""
        self._waiting.clear()
        self._leave()

    def _leave(self) -> None:
        # Another thread may be here, too.
        with suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Optional[Iterable[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        """Part of the import system's protocol."""
        self.look_again()
        finders = list(sys.meta_path)
        if name not in self._waiting or self not in finders:
            return None
        for finder in finders[finders.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                self._follow(name, spec.loader)
                return spec  # type: ignore[no-any-return]
        return None

    def look_again(self) -> None:
        """Runs what is due for modules whose import had begun at the start. Any later import does it, too."""
        for name in list(self._waiting):
            module = sys.modules.get(name)
            if module is not None and not _is_being_imported(module):
                self._run(name, module)

    def _follow(self, name: str, loader: object) -> None:
        run = self._run
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            # That of another watch may be gone with ours.
            vars(loader).pop("exec_module", None)
            execute(module)
            run(name, module)

        try:
            loader.exec_module = exec_module  # type: ignore[attr-defined]
        except AttributeError:
            pass  # a loader without a dictionary, shared by all: the module stays as it is

    def _run(self, name: str, module: ModuleType) -> None:
        after = self._waiting.pop(name, None)
        if not self._waiting:
            self._leave()
        if after is not None:
            after(module)


def _is_being_imported(module: ModuleType) -> bool:
    """Returns whether the import of the module is still under way, in this thread or another one."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
