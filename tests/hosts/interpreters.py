"""Python functions whose interpreter frames are hard to find: interpreters.py SECONDS. `foreign` runs in a thread that
pthread_create(3) made and that enters Python through PyGILState_Ensure. `inside` runs in a second interpreter. `deep`
calls itself 5,000 times, and `between` 600 times, each time through C functions.
"""

import ctypes
import sys
import threading

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
exec(BURN, globals())
burn = globals()["burn"]


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
def foreign(_):
    burn(SECONDS)


def run_in_foreign_thread():
    libc = ctypes.CDLL(None)
    thread = ctypes.c_ulong()
    assert libc.pthread_create(ctypes.byref(thread), None, foreign, None) == 0
    assert libc.pthread_join(thread, None) == 0


def run_in_second_interpreter():
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
run_in_foreign_thread()
run_in_second_interpreter()
thread = threading.Thread(target=run_in_second_interpreter)
thread.start()
thread.join()
# Record a complete stack first: `between` has too many C frames for Python 3.10 and older.
deep(0)
deep(4999)
between(599)
