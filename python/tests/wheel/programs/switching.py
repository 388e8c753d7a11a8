"""Compiles functions while threads or a signal handler enable and disable jitlisten and start and stop recordings. A
signal handler runs between any two bytecode instructions of the same thread, as with `sys.remote_exec`.

    python switching.py threads|signals TURNS COMPILATIONS DIRECTORY

Prints the number of switches and compilations, and any failures.
"""

import os
import random
import signal
import sys
import threading
import time

import numba
import numpy as np

import jitlisten

SWITCHER, TURNS, COMPILATIONS, DIRECTORY = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
os.environ["JITLISTEN_DIR"] = DIRECTORY
PROGRAMS = (
    "def f(n):\n    t = {0}\n    for i in range(n):\n        t += i * {1}\n        t -= {2}\n    return t\n",
    "def f(n):\n    if n > 3:\n        raise ValueError('large', n)\n    return {{1: n + {0}}}[1]\n",
    "def f(n):\n    a = np.arange(n) * {0}\n    return (a + 1).sum()\n",
    "def f(n):\n    t = 0\n    for i in numba.prange(n):\n        t += i\n    return t\n",
)
counts = {"turns": 0, "compilations": 0}
failures = set()


def compile_one(rng):
    """Compiles a new function and compares its result with the interpreter's."""
    source = rng.choice(PROGRAMS).format(*(rng.randrange(1000) for _ in range(3)))
    namespace = {"np": np, "numba": numba}
    exec(compile(source, os.path.join(DIRECTORY, "switched.py"), "exec"), namespace)
    expected = namespace["f"](3)
    actual = numba.njit(parallel="prange" in source)(namespace["f"])(3)
    if actual != expected:
        failures.add("%r is not %r: %s" % (actual, expected, source))
    counts["compilations"] += 1


def switch(rng):
    turn = counts["turns"]
    counts["turns"] += 1
    try:
        if turn % 50 == 49:
            jitlisten.start_recording(os.path.join(DIRECTORY, "switched.data"))
            jitlisten.stop_recording()
        if turn % 2 == 0:
            jitlisten.enable(rng.choice(["unwind", "perfmap,image,unwind"]))
            jitlisten.status()
        else:
            jitlisten.disable()
    except jitlisten.Error as error:
        # With two switching threads, a call may fail because the other thread was faster: there is no session, or a
        # recording is already running.
        if SWITCHER == "signals":
            failures.add(repr(error))


def is_done():
    return (counts["turns"] >= TURNS and counts["compilations"] >= COMPILATIONS) or failures


def repeat(action, seed):
    rng = random.Random(seed)
    while not is_done():
        try:
            action(rng)
        except Exception as error:
            failures.add("%s: %r" % (action.__name__, error))
        if action is switch:
            time.sleep(rng.random() / 500)


if SWITCHER == "threads":
    actions = enumerate([compile_one, switch] * 2)
    threads = [threading.Thread(target=repeat, args=(action, seed)) for seed, action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
else:
    rng = random.Random(1)

    def switch_and_rearm(signal_number, frame):
        switch(rng)
        signal.setitimer(signal.ITIMER_REAL, 0.001 + rng.random() / 500)

    signal.signal(signal.SIGALRM, switch_and_rearm)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    repeat(compile_one, 2)
    # A handler that runs after the call below sets the timer again.
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0)
jitlisten.disable()
print(counts["turns"], "turns,", counts["compilations"], "compilations:", sorted(failures) or "fine")
