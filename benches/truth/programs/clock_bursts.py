"""A thread that naps, and then works in three phases of a few hundred microseconds."""
import gc
import time

from phases import write

NAP = 0.001


def first(n):
    s = 0
    for i in range(n):  # first
        s += i * i  # first
    return s


def second(n):
    s = 0
    for i in range(n):  # second
        s += i ^ 3  # second
    return s


def third(n):
    s = 0
    for i in range(n):  # third
        s += i % 7  # third
    return s


def main(seconds, _seed):
    gc.disable()
    totals = {function.__name__: [0.0, 0] for function in (first, second, third)}
    while totals["third"][0] < seconds:
        time.sleep(NAP)
        for function in (first, second, third):
            started = time.thread_time()
            function(5000)
            totals[function.__name__][0] += time.thread_time() - started
            totals[function.__name__][1] += 1
    return totals


write(main)
