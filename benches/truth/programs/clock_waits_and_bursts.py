"""Works for 3 ms and naps for 10 ms in turns."""
# record: --wall
import time

from phases import per_second, timed, wall_time, write


def worked(n):
    s = 0
    for i in range(n):  # worked
        s ^= i  # worked


def main(seconds, _seed):
    totals = {"worked": [0.0, 0], "napped": [0.0, 0]}
    length = per_second(worked, totals["worked"])
    while totals["worked"][0] < seconds:
        with timed(totals["worked"]):
            worked(int(length * 0.003))
        with timed(totals["napped"], wall_time):
            time.sleep(0.01)  # napped
    return totals


write(main)
