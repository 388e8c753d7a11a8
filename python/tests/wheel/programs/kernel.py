"""Compiles a function and calls it forever; with ``work``, for two seconds of CPU time; with ``once``, not at all. With
``later``, compiles a second function once the file ``go`` exists. With ``blocked``, ``sleeping`` or ``selecting``, the
main thread only waits, and another compiles the second function.
"""

import os
import select
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


def compile_later():
    while not os.path.exists("go"):
        time.sleep(0.05)
    compiled_later(10)
    print("compiled", flush=True)


if "later" in sys.argv:
    compile_later()
# These block the main thread in a join, a sleep or a system call.
if {"blocked", "sleeping", "selecting"} & set(sys.argv):
    threading.Thread(target=compile_later, daemon=True).start()
if "blocked" in sys.argv:
    thread = threading.Thread(target=time.sleep, args=(600,), daemon=True)
    thread.start()
    thread.join()
if "sleeping" in sys.argv:
    time.sleep(600)
if "selecting" in sys.argv:
    select.select([os.pipe()[0]], [], [], 600)
while "once" not in sys.argv and not ("work" in sys.argv and time.process_time() > start_time + 2):
    burn(1_000_000)
