"""Compiles a function and calls it forever; with ``work``, for two seconds of CPU time; with ``once``, not at all. With
``later``, compiles a second function once the file ``go`` exists. With ``blocked``, the main thread only waits.
"""

import os
import sys
import threading
import time

import numba


@numba.njit(nogil=True)
def burn(n):
    total = 0.0
    for i in range(n):
        total += (i % 7) * 0.5
    return total


@numba.njit
def compiled_later(n):
    total = 1.0
    for _ in range(n):
        total += total % 3.0
    return total


burn(1)
start_time = time.process_time()
print("pid", os.getpid(), flush=True)
print("ready", flush=True)
if "later" in sys.argv:
    while not os.path.exists("go"):
        time.sleep(0.05)
    compiled_later(10)
    print("compiled", flush=True)
if "blocked" in sys.argv:
    # Blocks the main thread in a join.
    thread = threading.Thread(target=time.sleep, args=(600,), daemon=True)
    thread.start()
    thread.join()
while "once" not in sys.argv and not ("work" in sys.argv and time.process_time() > start_time + 2):
    burn(1_000_000)
