"""Bindings to the C API of ``libjitlisten.so``, declared in ``include/jitlisten.h``."""

import ctypes
import os
from typing import Any, List, Optional

from . import Error, __version__

OK, NOT_OPEN = 0, 2
COUNTERS = (
    "objects_loaded",
    "objects_finalized",
    "objects_freed",
    "objects_refused",
    "functions",
    "functions_without_frame_pointer",
    "objects_without_frame_pointers",
    "functions_without_unwind_table",
    "perfmap_bytes_written",
    "perfmap_failures",
    "unwind_failures",
    "jitdump_bytes_written",
    "jitdump_failures",
    "image_bytes_written",
    "image_failures",
    "images_written",
    "images_without_padding",
    "images_refused",
    "images_withdrawn",
    "images_put_back",
    "log_lines_lost",
    "unwind_tables_refused",
)


class Options(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("sinks", ctypes.c_char_p),
        ("directory", ctypes.c_char_p),
        ("log", ctypes.c_char_p),
        ("frame_pointers", ctypes.c_char_p),
        ("names", ctypes.c_char_p),
        ("listen", ctypes.c_uint32),
    ]


class Statistics(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t)] + [(name, ctypes.c_uint64) for name in COUNTERS]


class LiveFunction(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("address", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("file", ctypes.c_char_p),
        ("line", ctypes.c_uint32),
    ]


class LiveLlvm(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("path", ctypes.c_char_p),
        ("version", ctypes.c_char_p),
        ("discovered_by", ctypes.c_uint32),
        ("heard_by", ctypes.c_uint32),
        ("objects", ctypes.c_uint64),
        ("linked", ctypes.c_uint64),
        ("missing", ctypes.POINTER(ctypes.c_char_p)),
        ("missing_count", ctypes.c_size_t),
    ]


FUNCTION_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(LiveFunction))
LLVM_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(LiveLlvm))

_library: Optional[ctypes.CDLL] = None


def installed() -> str:
    """Returns the path of the library in this package."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "libjitlisten.so")


def in_process() -> Optional[str]:
    """Returns the path of the library if this process has loaded it, through ``LD_PRELOAD`` or explicitly."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            fields = line.rstrip("\n").split(None, 5)
            if len(fields) == 6 and os.path.basename(fields[5]).startswith("libjitlisten.so"):
                return fields[5]
    return None


def library() -> ctypes.CDLL:
    """Returns the library; opens it on the first call."""
    global _library
    if _library is None:
        path = in_process() or installed()
        try:
            handle = ctypes.CDLL(path)
            handle.jitlisten_version.restype = ctypes.c_char_p
            version = handle.jitlisten_version().decode()
            handle.jitlisten_functions.argtypes = [FUNCTION_CALLBACK, ctypes.c_void_p]
            handle.jitlisten_llvms.argtypes = [LLVM_CALLBACK, ctypes.c_void_p]
        except (OSError, AttributeError) as error:
            raise Error(f"cannot load the library: {error}") from None
        if version != __version__:
            raise Error(f"this process has jitlisten {version} already, from {path}; this is {__version__}")
        handle.jitlisten_last_error.restype = ctypes.c_char_p
        handle.jitlisten_clock.restype = ctypes.c_uint64
        handle.jitlisten_status_text.restype = ctypes.c_char_p
        _library = handle
    return _library


def check(status: int) -> None:
    """Raises the library's error message if a status is not OK."""
    if status != OK:
        message = library().jitlisten_last_error() or library().jitlisten_status_text(status)
        raise Error(message.decode("utf-8", "replace"))


def statistics() -> Optional[Statistics]:
    """Returns the counters, or ``None`` if there is no session."""
    counters = Statistics(size=ctypes.sizeof(Statistics))
    status = library().jitlisten_get_statistics(ctypes.byref(counters))
    if status == NOT_OPEN:
        return None
    check(status)
    return counters


def recording() -> Optional[str]:
    """Returns the file of the current recording, or ``None`` if there is no recording. The result is empty while an
    earlier recording has that name."""
    path = ctypes.create_string_buffer(1 << 13)
    if library().jitlisten_record_path(path, ctypes.c_size_t(len(path))) != OK:
        return None
    return os.fsdecode(path.value)


class Clocks:
    """Clocks of the kernel in ns, also where tests replace Python's (freezegun) or libc's (libfaketime)."""

    def __init__(self) -> None:
        self._clock = library().jitlisten_clock
        self._monotonic, self._thread_cpu = ctypes.c_int(1), ctypes.c_int(3)  # clock_gettime(2)

    def monotonic(self) -> int:
        """Returns the time of samples."""
        return int(self._clock(self._monotonic))

    def thread_cpu(self) -> int:
        """Returns the CPU time of the calling thread."""
        return int(self._clock(self._thread_cpu))


def collect(function: Any, convert: Any) -> List[Any]:
    """Calls a C function that enumerates structures; returns the results of ``convert`` for each structure."""
    results: List[Any] = []
    callback_type = function.argtypes[0]
    check(function(callback_type(lambda _, entry: results.append(convert(entry.contents))), None))
    return results
