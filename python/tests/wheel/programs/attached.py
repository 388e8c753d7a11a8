"""Compiles a function, then lets the jitlisten command given as an argument attach to this process."""

import os
import subprocess
import sys
import threading
import time

import numba


@numba.njit
def burn(n):
    return n + 1


burn(1)
outcomes = []


def attach():
    result = subprocess.run([sys.argv[1], "attach", str(os.getpid())], capture_output=True, text=True)
    outcomes.append((result.returncode, result.stdout + result.stderr))


thread = threading.Thread(target=attach)
thread.start()
# Attaching requires that the main thread runs Python.
while thread.is_alive():
    time.sleep(0.01)
print("attached", *outcomes[0], flush=True)
print("ready", flush=True)
time.sleep(600)
