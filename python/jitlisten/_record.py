"""Recordings, through the C API."""

import ctypes
import os
import sys
from contextlib import contextmanager, suppress
from typing import Any, Iterator, Optional

from . import SINKS, Error, Recording, enable
from ._library import check, library, statistics

_WALL, _CHILDREN = 1, 2
#: Whether the trampolines of Python are on for our sake.
_trampolines = False


class Options(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("hz", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("seconds", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("event", ctypes.c_char_p),
    ]


class Statistics(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t)] + [(name, ctypes.c_uint64) for name in Recording._fields]


def start(
    path: str, hz: int, wall: bool, children: bool, seconds: int, python: bool, lines: bool, event: Optional[str]
) -> None:
    if statistics() is None:
        enable(SINKS, lines=lines)
    flags = (_WALL if wall else 0) | (_CHILDREN if children else 0)
    options = Options(size=ctypes.sizeof(Options), hz=hz, flags=flags, seconds=seconds)
    options.event = None if event is None else event.encode()
    call = library().jitlisten_record_start
    call.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    check(call(os.fsencode(path), ctypes.byref(options)))
    if python:
        _use_trampolines()


def stop() -> Recording:
    check(library().jitlisten_record_stop())
    _leave_trampolines()
    counters = Statistics(size=ctypes.sizeof(Statistics))
    check(library().jitlisten_get_record_statistics(ctypes.byref(counters)))
    return Recording(*(getattr(counters, name) for name in Recording._fields))


@contextmanager
def during(*arguments: Any) -> Iterator[None]:
    """What is done inside of ``with``; the arguments are those of :func:`start`."""
    start(*arguments)
    process = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == process:
            stop()
        else:
            # A child of a fork has a recording only if it was asked for.
            with suppress(Error):
                stop()


def _use_trampolines() -> None:
    global _trampolines
    active = getattr(sys, "is_stack_trampoline_active", None)
    if active is None or active():
        return
    try:
        getattr(sys, "activate_stack_trampoline")("perf")
    except ValueError:
        # This Python was built without them.
        return
    _trampolines = True


def _leave_trampolines() -> None:
    global _trampolines
    if _trampolines:
        getattr(sys, "deactivate_stack_trampoline")()
        _trampolines = False
