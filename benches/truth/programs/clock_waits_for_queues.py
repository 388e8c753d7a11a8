"""A thread waits for what another puts into a queue."""
# record: --wall
import queue
import random
import threading
import time

from phases import per_second, timed, wall_time, write


def consumed(n):
    s = 0
    for i in range(n):  # consumed
        s ^= i  # consumed


def main(seconds, seed):
    totals = {"consumed": [0.0, 0], "waited": [0.0, 0], "produced": [0.0, 0]}
    length = per_second(consumed, totals["consumed"])
    random_source, tasks = random.Random(seed), queue.Queue()

    def consume():
        while True:
            with timed(totals["waited"], wall_time):
                task = tasks.get()  # waited
            if task is None:
                return
            with timed(totals["consumed"]):
                consumed(int(length * task))

    thread = threading.Thread(target=consume)
    thread.start()
    while totals["consumed"][0] < seconds:
        with timed(totals["produced"], wall_time):
            time.sleep(random_source.uniform(0.03, 0.09))  # produced
        tasks.put(random_source.uniform(0.005, 0.03))
    tasks.put(None)
    thread.join()
    return totals


write(main)
