"""A thread for each task of 1 to 4 ms."""
import random
import threading
import time

from numba import njit

from phases import write


@njit(nogil=True)
def compiled(n):
    s = 0.0
    for i in range(n):  # compiled
        s = s * 0.5 + i  # compiled
    return s


def interpreted(n):
    s = 0
    for i in range(n):  # interpreted
        s ^= i  # interpreted
    return s


def main(seconds, seed):
    compiled(1)
    lengths, totals = {}, {"compiled": [0.0, 0], "interpreted": [0.0, 0]}

    def task(function, n):
        started = time.thread_time()
        function(n)
        totals[function.__name__][0] += time.thread_time() - started
        totals[function.__name__][1] += 1

    for function, n in ((compiled, 5_000_000), (interpreted, 300_000)):
        task(function, n)
        lengths[function] = n / totals[function.__name__][0]
    random_source = random.Random(seed)
    while min(spent for spent, _ in totals.values()) < seconds:
        function = random_source.choice(list(lengths))
        length = int(lengths[function] * random_source.uniform(0.001, 0.004))
        thread = threading.Thread(target=task, args=(function, length))
        thread.start()
        thread.join()
    return totals


write(main)
