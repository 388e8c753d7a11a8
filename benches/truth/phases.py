"""Helper for the profiled programs, each of which measures the time of its own phases while it is recorded.

A phase is a function whose argument is a length. A line of the program that ends with `# NAME` belongs to the phase
of that name.

    PHASES=seconds:seed:file python programs/loops.py
"""

import gc
import json
import os
import random
import time

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
    with open(path, "w") as file:
        json.dump(totals, file)


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
