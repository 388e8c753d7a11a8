"""A parallel loop of 1 ms between naps, in the threads of Numba's pool."""

import random
import time

import numpy
from numba import njit, prange

from compiled_clock import cpu_seconds
from phases import write


@njit
def halved(n):
    s = 0.0
    for i in range(n):  # halved
        s = s * 0.5 + i  # halved
    return s


@njit
def rooted(n):
    s = 1.0
    for i in range(n):  # rooted
        s = (s + i) ** 0.5  # rooted
    return s


@njit(parallel=True)
def work(lengths, seconds, sums):
    for part in prange(2):
        clock = numpy.zeros(2, numpy.int64)
        start = cpu_seconds(clock)
        sums[part] += halved(lengths[0])
        middle = cpu_seconds(clock)
        sums[part] += rooted(lengths[1])
        seconds[part, 0] += middle - start
        seconds[part, 1] += cpu_seconds(clock) - middle


def main(seconds, seed):
    spent, sums, runs, random_source = numpy.zeros((2, 2)), numpy.zeros(2), 0, random.Random(seed)
    while spent.sum(axis=0).min() < seconds:
        scale = random_source.uniform(0.3, 1.7)
        work(numpy.array([int(250_000 * scale), int(25_000 * scale)]), spent, sums)
        time.sleep(random_source.uniform(0.0005, 0.003))
        runs += 2
    return {name: [float(spent[:, row].sum()), runs] for row, name in enumerate(("halved", "rooted"))}


write(main)
