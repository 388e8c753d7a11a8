"""Names of worker processes in a recording: those of multiprocessing, joblib and Dask."""

from __future__ import annotations

import ctypes
import functools
from contextlib import suppress
from types import ModuleType
from typing import Any, Optional

from ._library import library
from ._numba.imports import Watch

_watch: Optional[Watch] = None


def begin() -> None:
    """Names this process, and the workers that it starts, also in later recordings. Never raises."""
    global _watch
    if _watch is None:
        _watch = Watch({"multiprocessing.process": _name_processes, "distributed.worker": _name_dask_workers})
        _watch.start()


def _name_dask_workers(module: ModuleType) -> None:
    with suppress(Exception):
        original = module.Worker.__init__

        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            with suppress(Exception):
                _name_dask_worker(module)

        module.Worker.__init__ = __init__
        _name_dask_worker(module)


def _name_dask_worker(module: ModuleType) -> None:
    workers = list(module.Worker._instances)
    # The workers of a LocalCluster(processes=False) share a process.
    if len(workers) == 1:
        _set_name(f"dask worker {workers[0].name}")


def _name_processes(module: ModuleType) -> None:
    with suppress(Exception):
        process = module.current_process()
        if process.name != "MainProcess":
            _set_name(process.name)
        original = module.BaseProcess._bootstrap

        def _bootstrap(self: Any, *args: Any, **kwargs: Any) -> Any:
            with suppress(Exception):
                _set_name(self.name)
            return original(self, *args, **kwargs)

        module.BaseProcess._bootstrap = _bootstrap


def _set_name(name: str) -> None:
    call = library().jitlisten_record_set_name
    call.argtypes = [ctypes.c_char_p]
    call(name.encode("utf-8", "replace"))
