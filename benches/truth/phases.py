"""Helper for the profiled programs, each of which measures the time of its own phases while it is recorded.

A phase is a function whose argument is a length. A line of the program that ends with `# NAME` belongs to the phase
of that name.

    PHASES=seconds:seed:file python programs/loops.py
"""

import contextlib
import gc
import json
import os
import pathlib
import random
import resource
import threading
import time

#: Key of the process's time that is not recorded.
UNRECORDED = "unrecorded"

_phases = []


def phase(name, clock=time.thread_time):
    """Registers a function whose run time is proportional to its argument. Phases that start threads pass
    `process_time` as their clock."""

    def add(function):
        _phases.append((name, function, clock))
        return function

    return add


def run():
    """Runs the phases in random order and with random lengths; writes the seconds and runs of each into the file."""
    write(_run_phases)


def write(measure):
    """Calls a function with the seconds for each phase and a seed. Writes the seconds and runs of each phase, which it
    returns, into the file."""
    seconds, seed, path = os.environ.get("PHASES", "0.5:1:/dev/stdout").split(":", 2)
    totals = measure(float(seconds), int(seed))
    totals[UNRECORDED] = [_unrecorded_seconds(), 1]
    with open(path, "w") as file:
        json.dump(totals, file)


@contextlib.contextmanager
def timed(total, clock=time.thread_time):
    """Adds the time of a block, and one run, to the total of a phase."""
    started = clock()
    yield
    total[0] += clock() - started
    total[1] += 1


def wall_time():
    """Returns the time without that in which the calling thread could run but did not."""
    with open(f"/proc/self/task/{threading.get_native_id()}/schedstat") as file:
        return time.monotonic() - int(file.read().split()[1]) / 1e9


def per_second(function, total, length=300_000):
    """Runs a phase. Returns the length that takes a second."""
    before = total[0]
    with timed(total):
        function(length)
    return length / (total[0] - before)


def run_threads(target, arguments):
    """Calls a function with each argument in a thread of its own, and waits for all."""
    threads = [threading.Thread(target=target, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _unrecorded_seconds():
    """Returns the CPU time of the recorder's own thread, and of child processes."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = children.ru_utime + children.ru_stime
    for thread in pathlib.Path("/proc/self/task").iterdir():
        # Other threads may end in the meantime.
        with contextlib.suppress(OSError):
            if (thread / "comm").read_text().strip() == "jitlisten":
                seconds += int((thread / "schedstat").read_text().split()[0]) / 1e9
    return seconds


def _run_phases(seconds, seed):
    random_source = random.Random(seed)
    totals = {name: [0.0, 0] for name, _, _ in _phases}
    lengths = {}
    for name, function, clock in _phases:
        # Compile the function. Its own run time is negligible.
        function(1)
        gc.collect()
        lengths[name] = _calibrate(name, function, clock, totals)
    while True:
        unfinished = [entry for entry in _phases if totals[entry[0]][0] < seconds]
        if not unfinished:
            break
        name, function, clock = random_source.choice(unfinished)
        _run_timed(name, function, clock, totals, max(1, int(lengths[name] * random_source.uniform(0.3, 1.7))))
    return totals


def _run_timed(name, function, clock, totals, length):
    started = clock()
    function(length)
    elapsed = clock() - started
    totals[name][0] += elapsed
    totals[name][1] += 1
    return elapsed


def _calibrate(name, function, clock, totals):
    """Returns a length that takes about 100 ms."""
    length = 1
    while True:
        elapsed = _run_timed(name, function, clock, totals, length)
        if elapsed > 0.02:
            return max(1, int(length * 0.1 / elapsed))
        length *= 4
