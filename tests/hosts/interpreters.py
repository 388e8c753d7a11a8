"""Python functions where an interpreter's frames are harder to find: interpreters.py SECONDS. Below `foreign`, a thread
that pthread_create(3) has made and that enters Python by PyGILState_Ensure; below `inside`, a second interpreter; below
`deep`, 5,000 calls of itself; below `between`, 600 of itself, each through functions in C.
"""

import ctypes
import sys
import threading
import time

SECONDS = float(sys.argv[1])
BURN = """
import time
def burn(seconds):
    end = time.thread_time() + seconds
    total = 0
    while time.thread_time() < end:
        for number in range(1000):
            total += number * number
"""
exec(BURN)


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
def foreign(_):
    burn(SECONDS)


def in_foreign_thread():
    libc = ctypes.CDLL(None)
    thread = ctypes.c_ulong()
    assert libc.pthread_create(ctypes.byref(thread), None, foreign, None) == 0
    assert libc.pthread_join(thread, None) == 0


def in_second_interpreter():
    code = f"{BURN}\ndef inside():\n    burn({SECONDS})\ninside()"
    if sys.version_info >= (3, 13):
        import _interpreters

        error = _interpreters.exec(_interpreters.create(), code)
        assert error is None, error
    else:
        import _xxsubinterpreters as interpreters

        interpreters.run_string(interpreters.create(), code)


def deep(depth):
    if depth:
        deep(depth - 1)
    else:
        burn(SECONDS)


def between(depth):
    if depth:
        list(map(between, [depth - 1]))
    else:
        burn(SECONDS)


sys.setrecursionlimit(6000)
in_foreign_thread()
in_second_interpreter()
thread = threading.Thread(target=in_second_interpreter)
thread.start()
thread.join()
# A whole stack, before one that has too many frames of C in Python 3.10 and older.
deep(0)
deep(4999)
between(599)
