"""Adds what compiled code has marked to what coverage.py has traced.

A `Collector` of coverage.py is what traces; its `flush_data` writes what it has found into the data, for the current
context: when a
context ends, before a report, before the data is saved. There the marks are written, too. Marks are the innermost
collector's, as
traced lines are; what runs while there is none is dropped.
"""

from __future__ import annotations

import functools
import os
import sys
from types import SimpleNamespace
from typing import Any, Callable, Dict, Iterable, Set

from . import patches

_PENDING = "_jitlisten_marks"
_PATHS = "_jitlisten_paths"


def install() -> None:
    """Replaces methods of coverage.py's collector, once."""
    from coverage import collector

    Collector: Any = collector.Collector

    if getattr(Collector, "_jitlisten", False):
        return
    Collector._jitlisten = True
    _wrap(Collector, "start", before=_start)
    _wrap(Collector, "pause", after=_take)
    original = Collector.flush_data

    @functools.wraps(original)
    def flush_data(self: Any) -> bool:
        flushed = original(self)
        return _flush(self) or flushed

    Collector.flush_data = flush_data


def _wrap(
    owner: Any,
    name: str,
    before: Callable[[Any], None] = lambda self: None,
    after: Callable[[Any], None] = lambda self: None,
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


def _marks() -> Any:
    """The module, if anything can have been marked."""
    return sys.modules.get("jitlisten._coverage.marks")


def _start(collector: Any) -> None:
    patches.install()
    marks = _marks()
    if marks is not None:
        marks.make_own()
        if not any(getattr(each, "pid", os.getpid()) == os.getpid() for each in collector._collectors):
            marks.take()


def _take(collector: Any) -> None:
    marks = _marks()
    if marks is not None:
        collector.__dict__.setdefault(_PENDING, set()).update(marks.take())


def _flush(collector: Any) -> bool:
    if collector._collectors and collector._collectors[-1] is collector:
        _take(collector)
    pending = collector.__dict__.pop(_PENDING, None)
    _report(collector)
    if not pending:
        return False
    by_path: Dict[str, Set[Any]] = {}
    for mark in pending:
        by_path.setdefault(mark.path, set()).add((mark.from_line, mark.to_line))
    found = {
        path: _measured(path, pairs, collector.branch) for path, pairs in by_path.items() if _wanted(collector, path)
    }
    if not found:
        return False
    if collector.branch:
        collector.covdata.add_arcs(collector.mapped_file_dict(found))
    else:
        collector.covdata.add_lines(collector.mapped_file_dict(found))
    return True


def _measured(path: str, pairs: Iterable[Any], branch: bool) -> Any:
    """Lines, or arcs."""
    from . import infer

    lines = {line for pair in pairs for line in pair if line > 0}
    text = infer.text_of(path, _marks().digest(path) or "")
    run = text.lines(lines) if text is not None else lines
    if not branch:
        return run | lines
    arcs = {(before, after) for before, after in pairs if before}
    if text is not None:
        arcs |= text.arcs(arcs, run, _marks().lines_with_code(path))
    ends = {line for arc in arcs for line in arc}
    arcs.update((line, line) for line in run | lines if line not in ends)
    return arcs


def _wanted(collector: Any, path: str) -> bool:
    """Whether coverage.py measures this file."""
    known = collector.__dict__.setdefault(_PATHS, {})
    if path not in known:
        found = collector.should_trace(path, _frame_of(path))
        known[path] = bool(found.trace) and not found.file_tracer
    return bool(known[path])


def _frame_of(path: str) -> Any:
    """What `should_trace` asks of a frame: the name of its module."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        if names.get("__file__") == path:
            return SimpleNamespace(f_globals=names)
    return SimpleNamespace(f_globals={})


def _report(collector: Any) -> None:
    unmeasured = sys.modules.get("jitlisten._coverage.unmeasured")
    for said in unmeasured.take() if unmeasured is not None else ():
        collector.warn(said, slug="jitlisten-not-measured")
