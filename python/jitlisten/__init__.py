"""Makes code that LLVM compiles at run time visible to profilers, debuggers and unwinders.

>>> import jitlisten
>>> jitlisten.enable()          # before or after Numba is imported
>>> jitlisten.status().sinks
('perfmap', 'unwind', 'image')

Importing this module has no side effects.
"""

import os
from typing import (
    TYPE_CHECKING,
    Any,
    ContextManager,
    Dict,
    Iterable,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    TypedDict,
    Union,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._read import Report

__version__ = "0.1.0"
__all__ = [
    "Error",
    "Function",
    "Llvm",
    "RecordOptions",
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

#: Default sinks of :func:`enable`.
SINKS = ("perfmap", "image", "unwind")


class Error(RuntimeError):
    """A failed request, with the reason."""


class Llvm(NamedTuple):
    """A copy of LLVM in this process that jitlisten observes."""

    #: Path of the library that contains this copy of LLVM.
    path: str
    #: LLVM version, if known: ``"20.1.8"``.
    version: Optional[str]
    #: ``"call"`` if a hook is called for each object, ``"list"`` if LLVM's GDB JIT list is read when code becomes
    #: executable.
    discovered_by: str
    #: Number of objects in LLVM's GDB JIT list.
    objects: int
    #: Hooks and lists that observe LLVM: ``"runtimedyld"``, ``"jitlink"``, ``"list-call"``, ``"list-poll"``.
    heard_by: Tuple[str, ...] = ()
    #: Number of objects that RuntimeDyld has loaded, whether listed or not.
    linked: int = 0
    #: Reasons why some code of this copy of LLVM cannot be observed, one sentence each.
    missing: Tuple[str, ...] = ()


class Status(NamedTuple):
    """State of this process's session, returned by :func:`status`."""

    #: True if this process has a session; otherwise all other fields are empty.
    open: bool
    #: Path of the library in this process.
    library: Optional[str]
    version: Optional[str]
    #: Active sinks.
    sinks: Tuple[str, ...]
    #: Counters; see ``struct jitlisten_statistics`` in ``jitlisten.h``.
    counters: Dict[str, int]
    llvms: Tuple[Llvm, ...]
    #: True if Numba's code gets line tables.
    lines: bool


class RecordOptions(TypedDict, total=False):
    """Keyword arguments of :func:`record` and :func:`start_recording`; each may be omitted."""

    #: Samples per second of CPU time, or of wall-clock time with ``wall``. 199 by default.
    hz: int
    #: Sample wall-clock time, which includes waiting threads. False by default.
    wall: bool
    #: Record forked children, too, each into its own file. False by default.
    children: bool
    #: Stop the recording after this many seconds. The default, 0, means no limit.
    seconds: int
    #: Add Python functions as frames with lines (Python 3.8 or newer). True by default.
    python: bool
    #: Passed to :func:`enable`, which is called if necessary. True by default.
    lines: bool
    #: Event to count instead of time, if the kernel permits it: ``"cache-misses"``, ``"page-faults"``, or another event
    #: of ``perf list``.
    event: Optional[str]
    #: Process whose exit ends the recording: ``"PID:START"``, where START is field 22 of ``/proc/PID/stat``.
    recorder: Optional[str]


class Recording(NamedTuple):
    """Counters of a recording; see ``struct jitlisten_record_statistics`` in ``jitlisten.h``."""

    #: Number of samples in the file.
    samples: int
    #: Samples whose stack does not reach the start of the thread.
    incomplete: int
    #: Samples whose stack was too deep, so that only the innermost frames are recorded.
    truncated: int
    #: Samples dropped because a buffer was full.
    lost: int
    #: Number of sampled threads.
    threads: int
    #: Threads without a timer, which are not sampled.
    threads_without_timer: int
    #: Size of the file in bytes.
    bytes: int
    #: Nonzero if the file could not be written completely.
    failures: int


class Function(NamedTuple):
    """A live compiled function."""

    name: str
    address: int
    size: int
    #: File and line of the function's first instruction; ``None`` if unknown.
    file: Optional[str]
    line: Optional[int]


def enable(
    sinks: Union[str, Sequence[str]] = SINKS,
    *,
    lines: bool = True,
    directory: Optional[str] = None,
    log: Optional[str] = None,
) -> None:
    """Observes every LLVM in this process and notifies the sinks. Existing code gets names; code compiled later also
    gets frame pointers, unwind tables and, with ``lines``, line tables.

    ``directory`` and ``log`` correspond to ``JITLISTEN_DIR`` and ``JITLISTEN_LOG``. Only the first call sets them.
    """
    from . import _session

    _session.enable(sinks, lines, directory, log)


def disable() -> None:
    """Disables all sinks; Numba compiles as it does without jitlisten. Files are kept."""
    from . import _session

    _session.disable()


def status() -> Status:
    """Returns the active sinks, the counters and the observed copies of LLVM."""
    from . import _session

    return _session.status()


def functions() -> List[Function]:
    """Returns all live compiled functions, sorted by address."""
    from . import _session

    return _session.functions()


def start_recording(path: "Union[str, os.PathLike[str]]", **options: "Unpack[RecordOptions]") -> None:
    """Starts to sample every thread of this process into a ``perf.data`` file, for ``perf report`` and ``jitlisten
    lines``.

    :class:`RecordOptions` describes the keyword arguments and their defaults.
    """
    from . import _record

    _record.start(os.fspath(path), **options)


def stop_recording() -> Recording:
    """Ends the recording and returns its counters. The file is then complete."""
    from . import _record

    return _record.stop()


def record(path: "Union[str, os.PathLike[str]]", **options: "Unpack[RecordOptions]") -> "ContextManager[None]":
    """Records the body of a ``with`` statement. The arguments are those of :func:`start_recording`.

    >>> with jitlisten.record("part.data"):
    ...     kernel(data)
    """
    from . import _record

    return _record.during(os.fspath(path), **options)


def read(
    path: Union[str, "os.PathLike[str]", Iterable[Union[str, "os.PathLike[str]"]]],
    *other_paths: Union[str, "os.PathLike[str]"],
    by_thread: bool = False,
    stacks: bool = False,
) -> "Report":
    """Reads recordings of ``jitlisten record`` or ``perf record``; several recordings are merged.

    >>> jitlisten.read("jitlisten.perf.data").lines().groupby("file").seconds.sum()

    The path may be a folder of recordings, or a list. ``.lines()``, ``.functions()`` and ``.processes()`` return pandas
    tables, if pandas is installed; so does ``.by_thread()``, with host, rank, process and thread of each line, if
    ``by_thread`` is true. ``.rows()`` and ``.thread_rows()`` return lists of dicts. If ``stacks`` is true,
    ``.stacks()`` has each thread's stacks, and ``.to_hatchet()`` returns a call tree for Hatchet.
    ``.summary()`` returns the time per activity. ``.data`` is the complete output of ``jitlisten lines --json``. Raises
    :class:`Error` if a recording cannot be read.
    """
    from ._read import read

    return read(path, *other_paths, by_thread=by_thread, stacks=stacks)


def load_ipython_extension(shell: Any) -> None:
    """Adds the magics ``%jitlisten`` and ``%%jitlisten``; called by ``%load_ext jitlisten``."""
    from . import _notebook

    _notebook.load(shell)
