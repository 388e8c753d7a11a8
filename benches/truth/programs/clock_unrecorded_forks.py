"""A thread that works for 1 to 4 ms and forks a child that ends at once, and another thread that works."""

import os
import random
import threading

from phases import per_second, timed, write


def prepared(n):
    s = 0
    for i in range(n):  # prepared
        s ^= i  # prepared


def beside(n):
    s = 1
    for i in range(n):  # beside
        s = (s * i) & 255  # beside


def fork_and_wait():
    child = os.fork()  # forked
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


def main(seconds, seed):
    totals = {"prepared": [0.0, 0], "beside": [0.0, 0], "forked": [0.0, 0]}
    lengths = {function: per_second(function, totals[function.__name__]) for function in (prepared, beside)}
    random_source, has_ended = random.Random(seed), threading.Event()

    def work():
        while not has_ended.is_set():
            with timed(totals["beside"]):
                beside(int(lengths[beside] * 0.01))

    thread = threading.Thread(target=work)
    thread.start()
    while totals["prepared"][0] < seconds:
        with timed(totals["prepared"]):
            prepared(int(lengths[prepared] * random_source.uniform(0.001, 0.004)))
        with timed(totals["forked"]):
            fork_and_wait()
    has_ended.set()
    thread.join()
    return totals


write(main)
