"""The clock of the programs that are profiled: each times its own phases while it is recorded.

A phase is a function of a length. Each line of the program that ends with `# NAME` is one where the time of this phase
belongs.

    PHASES=seconds:seed:file python programs/loops.py
"""

import gc
import json
import os
import random
import time

_phases = []


def phase(name, clock=time.thread_time):
    """Decorates a function whose argument says how long it runs. `process_time` is for phases with threads of their
    own."""

    def add(function):
        _phases.append((name, function, clock))
        return function

    return add


def run():
    """Runs the phases in random order, each with random lengths; writes seconds and runs of each into the file."""
    seconds, seed, path = os.environ.get("PHASES", "0.5:1:/dev/stdout").split(":", 2)
    chosen = random.Random(int(seed))
    spent = {name: [0.0, 0] for name, _, _ in _phases}
    lengths = {}
    for name, function, clock in _phases:
        # Compiles; its own time is too short to be seen.
        function(1)
        gc.collect()
        lengths[name] = _calibrated(name, function, clock, spent)
    while True:
        left = [one for one in _phases if spent[one[0]][0] < float(seconds)]
        if not left:
            break
        name, function, clock = chosen.choice(left)
        _timed(name, function, clock, spent, max(1, int(lengths[name] * chosen.uniform(0.3, 1.7))))
    with open(path, "w") as file:
        json.dump(spent, file)


def _timed(name, function, clock, spent, length):
    begin = clock()
    function(length)
    took = clock() - begin
    spent[name][0] += took
    spent[name][1] += 1
    return took


def _calibrated(name, function, clock, spent):
    """A length that takes about 100 ms."""
    length = 1
    while True:
        took = _timed(name, function, clock, spent, length)
        if took > 0.02:
            return max(1, int(length * 0.1 / took))
        length *= 4
