"""Two threads that work for 1 to 4 ms and fork a child, which works, too."""

# record: -s
import os
import random
import struct

from phases import per_second, run_threads, timed, write


def prepared(n):
    s = 0
    for i in range(n):  # prepared
        s ^= i  # prepared


def inherited(n):
    s = 1
    for i in range(n):  # inherited
        s = (s * i) & 255  # inherited


def main(seconds, seed):
    totals = {"prepared": [0.0, 0], "inherited": [0.0, 0]}
    lengths = {function: per_second(function, totals[function.__name__]) for function in (prepared, inherited)}

    def fork(random_source):
        while min(spent for spent, _ in totals.values()) < seconds:
            with timed(totals["prepared"]):
                prepared(int(lengths[prepared] * random_source.uniform(0.001, 0.004)))
            n = int(lengths[inherited] * random_source.uniform(0.001, 0.006))
            reader, writer = os.pipe()
            child = os.fork()
            if not child:
                total = [0.0, 0]
                with timed(total):
                    inherited(n)
                os.write(writer, struct.pack("d", total[0]))
                os._exit(0)
            os.waitpid(child, 0)
            totals["inherited"][0] += struct.unpack("d", os.read(reader, 8))[0]
            totals["inherited"][1] += 1
            os.close(reader)
            os.close(writer)

    run_threads(fork, [random.Random(seed + thread) for thread in range(2)])
    return totals


write(main)
