"""CPU clock of a thread, for compiled code."""

import ctypes

from numba import njit

_CLOCK_THREAD_CPUTIME_ID = 3
_clock_gettime = ctypes.CDLL(None).clock_gettime
_clock_gettime.argtypes, _clock_gettime.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_int


@njit
def cpu_seconds(space):
    """Returns the calling thread's CPU time. Needs an array of two int64, because a thread that libc does not know may
    not allocate."""
    _clock_gettime(_CLOCK_THREAD_CPUTIME_ID, space.ctypes)
    return space[0] + space[1] / 1e9
