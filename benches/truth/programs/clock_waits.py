"""Works and sleeps in turns, for long and for short times."""
# record: --wall
import time

from phases import write


def worked(n):
    s = 0
    for i in range(n):  # worked
        s ^= i  # worked
    return s


def main(seconds, _seed):
    started = time.thread_time()
    worked(1_000_000)
    totals = {"worked": [time.thread_time() - started, 1], "slept": [0.0, 0], "napped": [0.0, 0]}
    length = 1_000_000 / totals["worked"][0]
    while totals["slept"][0] < seconds:
        started = time.thread_time()
        worked(int(length * 0.06))
        totals["worked"][0] += time.thread_time() - started
        time.sleep(0.05)  # slept
        totals["slept"][0] += 0.05
        for _ in range(5):
            time.sleep(0.01)  # napped
            totals["napped"][0] += 0.01
        totals["worked"][1] += 1
        totals["slept"][1] += 1
        totals["napped"][1] += 5
    return totals


write(main)
