"""Works for 1, 3, 10 or 30 ms and naps in turns."""

# record: --wall
import random
import time

from phases import per_second, timed, wall_time, write


def short(n):
    s = 0
    for i in range(n):  # short
        s ^= i  # short


def middle(n):
    s = 1
    for i in range(n):  # middle
        s = (s * i) & 255  # middle


def long(n):
    s = 2
    for i in range(n):  # long
        s = (s + i) & 255  # long


def longest(n):
    s = 3
    for i in range(n):  # longest
        s = s - i  # longest


def main(seconds, seed):
    bursts = {short: 0.001, middle: 0.003, long: 0.01, longest: 0.03}
    totals = {function.__name__: [0.0, 0] for function in bursts}
    totals["napped"] = [0.0, 0]
    lengths = {function: per_second(function, totals[function.__name__]) for function in bursts}
    random_source = random.Random(seed)
    while unfinished := [function for function in bursts if totals[function.__name__][0] < seconds]:
        function = random_source.choice(unfinished)
        # Equal bursts follow each other, as in a program that does one thing at a time.
        for _ in range(20):
            with timed(totals[function.__name__]):
                function(int(lengths[function] * bursts[function]))
            with timed(totals["napped"], wall_time):
                time.sleep(0.01)  # napped
    return totals


write(main)
