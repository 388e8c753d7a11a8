"""A forked child for each task of 1 to 6 ms."""
# record: -s
import os
import random
import struct
import time

from phases import write


def looped(n):
    s = 0
    for i in range(n):  # looped
        s ^= i  # looped
    return s


def main(seconds, seed):
    started = time.thread_time()
    looped(1_000_000)
    totals = {"looped": [time.thread_time() - started, 1]}
    length = 1_000_000 / totals["looped"][0]
    random_source = random.Random(seed)
    reader, writer = os.pipe()
    while totals["looped"][0] < seconds:
        n = int(length * random_source.uniform(0.001, 0.006))
        child = os.fork()
        if not child:
            started = time.thread_time()
            looped(n)
            os.write(writer, struct.pack("d", time.thread_time() - started))
            os._exit(0)
        os.waitpid(child, 0)
        totals["looped"][0] += struct.unpack("d", os.read(reader, 8))[0]
        totals["looped"][1] += 1
    return totals


write(main)
