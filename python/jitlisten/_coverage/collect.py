"""Adds the marks of compiled code to the data that coverage.py has traced.

coverage.py traces with a `Collector`. Its `flush_data` writes the traced lines into the data for the current context:
when a context ends, before a report, and before the data is saved. The marks are written at the same time. Like traced
lines, they belong to the innermost collector; marks that are set while there is no collector are dropped.
"""

from __future__ import annotations

import functools
import os
import sys
from types import SimpleNamespace
from typing import Any, Callable, Dict, Iterable, Optional, Set

from . import patches

_PENDING = "_jitlisten_marks"
_PATHS = "_jitlisten_paths"


def install() -> None:
    """Wraps methods of coverage.py's collector, once."""
    from coverage import collector

    Collector: Any = collector.Collector

    if getattr(Collector, "_jitlisten", False):
        return
    Collector._jitlisten = True
    _wrap(Collector, "start", before=_start_collector)
    _wrap(Collector, "pause", after=_take_marks)
    # The tracer of an outer collector misses the returns from these two, and then the calls of the next two. It counts
    # both, so there must be as many frames.
    _wrap(Collector, "stop")
    _wrap(Collector, "resume")
    _wrap(Collector, "reset", after=_pop_marks)
    original = Collector.flush_data

    @functools.wraps(original)
    def flush_data(self: Any) -> bool:
        flushed = original(self)
        return _flush_marks(self) or flushed

    Collector.flush_data = flush_data


def _wrap(
    owner: Any,
    name: str,
    before: Callable[[Any], None] = lambda self: None,
    after: Callable[[Any], object] = lambda self: None,
) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(self: Any) -> Any:
        before(self)
        try:
            return original(self)
        finally:
            after(self)

    setattr(owner, name, method)


def _marks_module() -> Any:
    """Returns the `marks` module if it is loaded; otherwise no code has marks."""
    return sys.modules.get("jitlisten._coverage.marks")


def _start_collector(collector: Any) -> None:
    patches.install()
    marks = _marks_module()
    if marks is not None:
        marks.use_own_memory()
        if not any(getattr(other, "pid", os.getpid()) == os.getpid() for other in collector._collectors):
            marks.take()


def _take_marks(collector: Any) -> None:
    marks = _marks_module()
    if marks is not None:
        collector.__dict__.setdefault(_PENDING, set()).update(marks.take())


def _pop_marks(collector: Any) -> Optional[Set[Any]]:
    """Returns the marks of a collector, which then has none."""
    if collector._collectors and collector._collectors[-1] is collector:
        _take_marks(collector)
    pending: Optional[Set[Any]] = collector.__dict__.pop(_PENDING, None)
    return pending


def _flush_marks(collector: Any) -> bool:
    pending = _pop_marks(collector)
    _warn_unmeasured(collector)
    if not pending:
        return False
    by_path: Dict[str, Set[Any]] = {}
    for mark in pending:
        by_path.setdefault(mark.path, set()).add((mark.from_line, mark.to_line))
    measured = {
        path: _lines_or_arcs(pairs, collector.branch)
        for path, pairs in by_path.items()
        if _is_measured(collector, path)
    }
    if not measured:
        return False
    if collector.branch:
        collector.covdata.add_arcs(collector.mapped_file_dict(measured))
    else:
        collector.covdata.add_lines(collector.mapped_file_dict(measured))
    return True


def _lines_or_arcs(pairs: Iterable[Any], branch: bool) -> Any:
    """Returns the arcs of a file if branches are measured, otherwise the lines of the file."""
    if branch:
        return {(source or target, target) for source, target in pairs}
    return {line for pair in pairs for line in pair if line > 0}


def _is_measured(collector: Any, path: str) -> bool:
    """Returns true if coverage.py measures this file."""
    cache = collector.__dict__.setdefault(_PATHS, {})
    if path not in cache:
        # coverage.py has usually decided when the module's own code ran.
        disposition = collector.should_trace_cache.get(path) or collector.should_trace(path, _fake_frame(path))
        cache[path] = bool(disposition.trace) and not disposition.file_tracer
    return bool(cache[path])


def _fake_frame(path: str) -> Any:
    """Imitates a frame for `should_trace`, which reads the frame's module name."""
    for module in list(sys.modules.values()):
        namespace = getattr(module, "__dict__", {})
        if namespace.get("__file__") == path:
            return SimpleNamespace(f_globals=namespace)
    return SimpleNamespace(f_globals={})


def _warn_unmeasured(collector: Any) -> None:
    unmeasured = sys.modules.get("jitlisten._coverage.unmeasured")
    for message in unmeasured.take() if unmeasured is not None else ():
        collector.warn(message, slug="jitlisten-not-measured")
