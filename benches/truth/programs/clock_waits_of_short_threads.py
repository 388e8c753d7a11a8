"""A thread for each task, which works for 2 to 8 ms and naps for 4 ms."""
# record: --wall
import random
import threading
import time

from phases import per_second, timed, wall_time, write


def worked(n):
    s = 0
    for i in range(n):  # worked
        s ^= i  # worked


def main(seconds, seed):
    totals = {"worked": [0.0, 0], "napped": [0.0, 0]}
    length = per_second(worked, totals["worked"])
    random_source = random.Random(seed)

    def task(n):
        with timed(totals["worked"]):
            worked(n)
        with timed(totals["napped"], wall_time):
            time.sleep(0.004)  # napped

    while totals["worked"][0] < seconds:
        thread = threading.Thread(target=task, args=(int(length * random_source.uniform(0.002, 0.008)),))
        thread.start()
        thread.join()
    return totals


write(main)
