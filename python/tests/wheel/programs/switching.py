"""Compiles while jitlisten is switched on and off, and records begin and end: by other threads, or by a signal handler,
which runs in the same thread between any two of its instructions, as `sys.remote_exec` does.

    python switching.py threads|signals TURNS COMPILATIONS DIRECTORY

Prints how often each was done, and what went wrong.
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

HOW, TURNS, COMPILATIONS, DIRECTORY = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
os.environ["JITLISTEN_DIR"] = DIRECTORY
PROGRAMS = (
    "def f(n):\n    t = {0}\n    for i in range(n):\n        t += i * {1}\n        t -= {2}\n    return t\n",
    "def f(n):\n    if n > 3:\n        raise ValueError('large', n)\n    return {{1: n + {0}}}[1]\n",
    "def f(n):\n    a = np.arange(n) * {0}\n    return (a + 1).sum()\n",
    "def f(n):\n    t = 0\n    for i in numba.prange(n):\n        t += i\n    return t\n",
)
counts = {"turns": 0, "compilations": 0}
failures = set()


def compile_one(chance):
    """Compiles a new function and compares its result with the interpreter's."""
    text = chance.choice(PROGRAMS).format(*(chance.randrange(1000) for _ in range(3)))
    space = {"np": np, "numba": numba}
    exec(compile(text, os.path.join(DIRECTORY, "switched.py"), "exec"), space)
    expected = space["f"](3)
    found = numba.njit(parallel="prange" in text)(space["f"])(3)
    if found != expected:
        failures.add("%r is not %r: %s" % (found, expected, text))
    counts["compilations"] += 1


def switch(chance):
    turn = counts["turns"]
    counts["turns"] += 1
    try:
        if turn % 50 == 49:
            jitlisten.start_recording(os.path.join(DIRECTORY, "switched.data"))
            jitlisten.stop_recording()
        if turn % 2 == 0:
            jitlisten.enable(chance.choice(["unwind", "perfmap,image,unwind"]))
            jitlisten.status()
        else:
            jitlisten.disable()
    except jitlisten.Error as error:
        # One of two threads is too late: there is no session, or a recording already.
        if HOW == "signals":
            failures.add(repr(error))


def done():
    return (counts["turns"] >= TURNS and counts["compilations"] >= COMPILATIONS) or failures


def repeat(action, seed):
    chance = random.Random(seed)
    while not done():
        try:
            action(chance)
        except Exception as error:
            failures.add("%s: %r" % (action.__name__, error))
        if action is switch:
            time.sleep(chance.random() / 500)


if HOW == "threads":
    actions = enumerate([compile_one, switch] * 2)
    threads = [threading.Thread(target=repeat, args=(action, seed)) for seed, action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
else:
    chance = random.Random(1)

    def handler(number, frame):
        switch(chance)
        signal.setitimer(signal.ITIMER_REAL, 0.001 + chance.random() / 500)

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    repeat(compile_one, 2)
    signal.setitimer(signal.ITIMER_REAL, 0)
jitlisten.disable()
print(counts["turns"], "turns,", counts["compilations"], "compilations:", sorted(failures) or "fine")
