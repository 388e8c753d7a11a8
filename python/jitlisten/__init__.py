"""Makes code that LLVM compiles at run time visible to profilers, debuggers and unwinders.

>>> import jitlisten
>>> jitlisten.enable()          # before or after Numba is imported
>>> jitlisten.status().sinks
('perfmap', 'unwind', 'image')

Importing this module does nothing.
"""

import os
from typing import TYPE_CHECKING, Any, ContextManager, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

if TYPE_CHECKING:
    from ._read import Report

__version__ = "0.1.0"
__all__ = [
    "Error",
    "Function",
    "Llvm",
    "Recording",
    "Status",
    "disable",
    "enable",
    "functions",
    "read",
    "record",
    "start_recording",
    "status",
    "stop_recording",
]

#: The sinks of :func:`enable`, if it is called without any.
SINKS = ("perfmap", "image", "unwind")


class Error(RuntimeError):
    """A request that failed, with the reason."""


class Llvm(NamedTuple):
    """An observed LLVM of this process."""

    #: The library that contains it.
    path: str
    #: Its version, if known: ``"20.1.8"``.
    version: Optional[str]
    #: ``"call"``: a hook is called for each object. ``"list"``: its GDB JIT list is read when code becomes
    #: executable.
    discovered_by: str
    #: Objects in its GDB JIT list.
    objects: int
    #: How it is observed: ``"runtimedyld"``, ``"jitlink"``, ``"list-call"``, ``"list-poll"``.
    heard_by: Tuple[str, ...] = ()
    #: How many objects RuntimeDyld has reported, whether they are in the list or not.
    linked: int = 0
    #: What cannot be observed, and why, a sentence each.
    missing: Tuple[str, ...] = ()


class Status(NamedTuple):
    """What :func:`status` returns."""

    #: Whether this process has a session; everything else is empty otherwise.
    open: bool
    #: The library in this process.
    library: Optional[str]
    version: Optional[str]
    #: The sinks that are on.
    sinks: Tuple[str, ...]
    #: The counters; see ``struct jitlisten_statistics`` in ``jitlisten.h``.
    counters: Dict[str, int]
    llvms: Tuple[Llvm, ...]
    #: Whether Numba's code gets line tables.
    lines: bool


class Recording(NamedTuple):
    """The counters of a recording; see ``struct jitlisten_record_statistics`` in ``jitlisten.h``."""

    #: Samples in the file.
    samples: int
    #: Those whose stack does not reach the start of the thread.
    incomplete: int
    #: Stacks that were too deep; only the innermost frames are there.
    truncated: int
    #: Samples lost because a buffer was full.
    lost: int
    #: Threads that were sampled.
    threads: int
    #: Threads without a timer, which are not sampled.
    threads_without_timer: int
    #: Bytes of the file.
    bytes: int
    #: Whether the file could not be written to its end.
    failures: int


class Function(NamedTuple):
    """A live compiled function."""

    name: str
    address: int
    size: int
    #: File and line of its first instruction; ``None``: unknown.
    file: Optional[str]
    line: Optional[int]


def enable(
    sinks: Union[str, Sequence[str]] = SINKS,
    *,
    lines: bool = True,
    directory: Optional[str] = None,
    log: Optional[str] = None,
) -> None:
    """Observes every LLVM of this process and notifies the sinks. Existing code gets names; code compiled later also
    gets frame pointers, unwind tables and, with ``lines``, line tables.

    ``directory`` and ``log`` are as ``JITLISTEN_DIR`` and ``JITLISTEN_LOG``; only those of the first call count.
    """
    from . import _session

    _session.enable(sinks, lines, directory, log)


def disable() -> None:
    """Switches all sinks off; Numba compiles as without jitlisten again. Files are kept."""
    from . import _session

    _session.disable()


def status() -> Status:
    """The active sinks, the counters and the observed LLVMs."""
    from . import _session

    return _session.status()


def functions() -> List[Function]:
    """Every live compiled function, by address."""
    from . import _session

    return _session.functions()


def start_recording(
    path: "Union[str, os.PathLike[str]]",
    *,
    hz: int = 199,
    wall: bool = False,
    children: bool = False,
    seconds: int = 0,
    python: bool = True,
    lines: bool = True,
    event: Optional[str] = None,
    recorder: Optional[str] = None,
) -> None:
    """Starts sampling every thread of this process into a ``perf.data``, for ``perf report`` and ``jitlisten lines``.

    ``hz``: samples per second of processor time, with ``wall`` of wall-clock time. ``python``: Python functions are
    frames of their own, with lines (3.8 or newer). ``lines``: as in :func:`enable`, which is called if necessary.
    ``event``: counted instead of time, if the kernel permits it: ``"cache-misses"``, ``"page-faults"``, or another of
    ``perf list``. ``recorder``: a process whose end ends the recording, ``"PID:START"`` with field 22 of
    ``/proc/PID/stat``.
    """
    from . import _record

    _record.start(os.fspath(path), hz, wall, children, seconds, python, lines, event, recorder)


def stop_recording() -> Recording:
    """Ends the recording. The file is complete when this returns."""
    from . import _record

    return _record.stop()


def record(
    path: "Union[str, os.PathLike[str]]",
    *,
    hz: int = 199,
    wall: bool = False,
    children: bool = False,
    seconds: int = 0,
    python: bool = True,
    lines: bool = True,
    event: Optional[str] = None,
) -> "ContextManager[None]":
    """Records the body of a ``with`` statement; arguments as of :func:`start_recording`.

    >>> with jitlisten.record("part.data"):
    ...     kernel(data)
    """
    from . import _record

    return _record.during(os.fspath(path), hz, wall, children, seconds, python, lines, event)


def read(path: Union[str, "os.PathLike[str]"], *more: Union[str, "os.PathLike[str]"]) -> "Report":
    """Reads recordings of ``jitlisten record`` or ``perf record``; several are added up.

    >>> jitlisten.read("jitlisten.perf.data").lines().groupby("file").seconds.sum()

    ``.lines()`` and ``.functions()`` are tables of pandas, if it is installed; ``.rows()`` is a list of dicts;
    ``.summary()`` has the kinds of time; ``.data`` is all that ``jitlisten lines --json`` writes. Raises :class:`Error`
    if a recording cannot be read.
    """
    from ._read import read

    return read(path, *more)


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext jitlisten``: the magics ``%jitlisten`` and ``%%jitlisten``."""
    from . import _notebook

    _notebook.load(shell)
