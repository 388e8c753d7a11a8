"""Makes a large recording of a small one: every sample again and again, on many threads.

    multiply.py IN.perf.data OUT.perf.data [SAMPLES, default 1000000] [THREADS, default 64]

For `perf record -g -e cpu-clock` and what has its layout: IP, TID, TIME at the beginning of a sample. The leaf's address is
moved a little within its function's first bytes in no sample, so every place is one that was seen; stacks are made different by
leaving out outer frames, so that there are many of them.
"""

import random
import struct
import sys


def records(data):
    at = 0
    while at + 8 <= len(data):
        kind, misc, size = struct.unpack_from("<IHH", data, at)
        yield kind, misc, data[at : at + size]
        at += size


def main():
    source, target = sys.argv[1:3]
    wanted = int(sys.argv[3]) if len(sys.argv) > 3 else 1_000_000
    threads = int(sys.argv[4]) if len(sys.argv) > 4 else 64
    whole = bytearray(open(source, "rb").read())
    offset, size = struct.unpack_from("<QQ", whole, 40)
    others, samples = [], []
    for kind, misc, record in records(whole[offset : offset + size]):
        (samples if kind == 9 else others).append(bytes(record))
    random.seed(1)
    with open(target, "wb") as out:
        # No features behind the data.
        struct.pack_into("<4Q", whole, 72, 0, 0, 0, 0)
        out.write(whole[:offset])
        written = sum(map(len, others))
        for record in others:
            out.write(record)
        last = struct.unpack_from("<Q", samples[-1], 24)[0]
        step = 0
        for number in range(wanted):
            record = bytearray(samples[number % len(samples)])
            pid = struct.unpack_from("<I", record, 16)[0]
            struct.pack_into("<IQ", record, 20, pid + number % threads, last + number * 1000)
            count = struct.unpack_from("<Q", record, 40)[0]
            if count > 4 and number % 3 == 0:
                keep = random.randint(4, count)
                record = record[: 48 + 8 * keep] + record[48 + 8 * count :]
                struct.pack_into("<Q", record, 40, keep)
                struct.pack_into("<H", record, 6, len(record))
            out.write(record)
            written += len(record)
        out.seek(48)
        out.write(struct.pack("<Q", written))


main()
