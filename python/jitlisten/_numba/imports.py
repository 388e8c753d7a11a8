"""Calls a function when a module has been imported; immediately if it already is.

A finder at the head of `sys.meta_path` only checks names, and leaves the search to the finders after it. It modifies
the loader that they return: until the module has been executed, the loader's `exec_module` is ours. Several watches
may wait for the same module. The finder does not keep them alive: whoever starts a watch keeps it (`replacement.py` has
the reason).

The finder stays in the list when nobody waits any more. Removing it would move the others forward, and an import that
is going through the list, in another thread or below a signal handler, would miss the next one and fail.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Callable, Dict, Iterable, List, Optional
from weakref import ref

AfterImport = Callable[[ModuleType], None]


class Watch:
    """Waits for the import of modules by name."""

    def __init__(self, callbacks: Dict[str, AfterImport]) -> None:
        self._pending = dict(callbacks)

    def start(self) -> None:
        """Calls the functions of modules that are already imported, and waits for the others."""
        self.check_imported()
        if self._pending:
            _FINDER.add(self)

    def stop(self) -> None:
        """Stops waiting."""
        self._pending.clear()
        _FINDER.remove(self)

    def waits_for(self, name: str) -> bool:
        return name in self._pending

    def check_imported(self) -> None:
        """Calls the functions of modules that were being imported at the start. Every later import does this, too."""
        for name in list(self._pending):
            module = sys.modules.get(name)
            if module is not None and not _is_being_imported(module):
                self.call_back(name, module)

    def call_back(self, name: str, module: ModuleType) -> None:
        callback = self._pending.pop(name, None)
        if not self._pending:
            _FINDER.remove(self)
        if callback is not None:
            callback(module)


class _Finder:
    """Finder of all watches."""

    def __init__(self) -> None:
        # Only single operations change the list: other threads and signal handlers use it, too.
        self._watches: List[ref[Watch]] = []

    def add(self, watch: Watch) -> None:
        self._watches.append(ref(watch))
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def remove(self, watch: Watch) -> None:
        with suppress(ValueError):
            self._watches.remove(ref(watch))

    def _live_watches(self) -> List[Watch]:
        return [watch for watch in [reference() for reference in list(self._watches)] if watch is not None]

    def find_spec(
        self, name: str, path: Optional[Iterable[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        """Part of the import system's protocol."""
        for watch in self._live_watches():
            watch.check_imported()
        finders = list(sys.meta_path)
        if self not in finders or not any(watch.waits_for(name) for watch in self._live_watches()):
            return None
        for finder in finders[finders.index(self) + 1 :]:
            # A program that joins saved lists of finders may have this one twice.
            find = getattr(finder, "find_spec", None) if finder is not self else None
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                self._hook_loader(name, spec.loader)
                return spec  # type: ignore[no-any-return]
        return None

    def _hook_loader(self, name: str, loader: object) -> None:
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            if module.__name__ != name:  # a loader of several modules, as in frozen programs
                execute(module)
                return
            vars(loader).pop("exec_module", None)
            execute(module)
            for watch in self._live_watches():
                watch.call_back(name, module)

        try:
            loader.exec_module = exec_module  # type: ignore[attr-defined]
        except AttributeError:
            pass  # the loader has no dictionary and is shared by all modules, so this module is not patched


_FINDER = _Finder()


def _is_being_imported(module: ModuleType) -> bool:
    """Returns true if the module is still being imported, in this thread or another one."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
