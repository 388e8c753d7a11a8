"""Recordings, controlled through the C API."""

import ctypes
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Iterator

from . import SINKS, Error, Recording, RecordOptions, _compilations, _names, _owners, enable
from ._library import check, library, statistics

if TYPE_CHECKING:
    from typing_extensions import Unpack

_WALL, _CHILDREN, _NO_PYTHON = 1, 2, 8


class Options(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("hz", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("seconds", ctypes.c_uint32),
        ("recorder", ctypes.c_uint32),
        ("event", ctypes.c_char_p),
        ("recorder_start", ctypes.c_uint64),
    ]


class Statistics(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t)] + [(name, ctypes.c_uint64) for name in Recording._fields]


def start(path: str, **options: "Unpack[RecordOptions]") -> None:
    unknown = options.keys() - RecordOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"unexpected keyword argument {min(unknown)!r}")
    if statistics() is None:
        enable(SINKS, lines=options.get("lines", True))
    record_options = Options(size=ctypes.sizeof(Options), hz=options.get("hz", 0), seconds=options.get("seconds", 0))
    record_options.flags |= _WALL if options.get("wall") else 0
    record_options.flags |= _CHILDREN if options.get("children") else 0
    record_options.flags |= 0 if options.get("python", True) else _NO_PYTHON
    recorder, event = options.get("recorder"), options.get("event")
    if recorder is not None:
        record_options.recorder, record_options.recorder_start = map(int, recorder.split(":"))
    record_options.event = None if event is None else event.encode()
    call = library().jitlisten_record_start
    call.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    check(call(os.fsencode(path), ctypes.byref(record_options)))
    _compilations.begin()
    _names.begin()
    _owners.begin()


def stop() -> Recording:
    check(library().jitlisten_record_stop())
    counters = Statistics(size=ctypes.sizeof(Statistics))
    check(library().jitlisten_get_record_statistics(ctypes.byref(counters)))
    return Recording(*(getattr(counters, name) for name in Recording._fields))


@contextmanager
def during(path: str, **options: "Unpack[RecordOptions]") -> Iterator[None]:
    """Context that records its body. The arguments are those of :func:`start`."""
    start(path, **options)
    pid = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == pid:
            stop()
        else:
            # The child of a fork has a recording only if it was requested.
            with suppress(Error):
                stop()
