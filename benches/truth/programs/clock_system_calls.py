"""A thread that naps, and then works in two phases of system calls and one of Python."""

import os
import random
import time

from phases import per_second, timed, write

ZERO = os.open("/dev/zero", os.O_RDONLY)
SPACE = bytearray(1 << 16)


def filled(n):
    for _ in range(n):  # filled
        os.readv(ZERO, [SPACE])  # filled


def computed(n):
    s = 0
    for i in range(n):  # computed
        s += i ^ 3  # computed


def examined(n):
    for _ in range(n):  # examined
        os.stat("/proc/self/status")  # examined


def main(seconds, seed):
    functions = (filled, computed, examined)
    totals = {function.__name__: [0.0, 0] for function in functions}
    lengths = {function: per_second(function, totals[function.__name__], 20_000) for function in functions}
    random_source = random.Random(seed)
    while min(spent for spent, _ in totals.values()) < seconds:
        time.sleep(0.001)
        for function in functions:
            with timed(totals[function.__name__]):
                function(max(1, int(lengths[function] * random_source.uniform(0.0002, 0.0006))))
    return totals


write(main)
