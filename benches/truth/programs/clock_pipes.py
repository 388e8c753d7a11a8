"""A process and its child answer each other through pipes."""
# record: -s
import os
import random
import struct

from phases import per_second, timed, write


def asked(n):
    s = 0
    for i in range(n):  # asked
        s ^= i  # asked


def answered(n):
    s = 1
    for i in range(n):  # answered
        s = (s * i) & 255  # answered


def answer(reader, writer, length):
    while request := os.read(reader, 8):
        total = [0.0, 0]
        with timed(total):
            answered(int(length * struct.unpack("d", request)[0]))
        os.write(writer, struct.pack("d", total[0]))
    os._exit(0)


def main(seconds, seed):
    totals = {"asked": [0.0, 0], "answered": [0.0, 0]}
    lengths = {function: per_second(function, totals[function.__name__]) for function in (asked, answered)}
    random_source = random.Random(seed)
    requests, answers = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.close(requests[1])
        answer(requests[0], answers[1], lengths[answered])
    while totals["asked"][0] < seconds:
        with timed(totals["asked"]):
            asked(int(lengths[asked] * random_source.uniform(0.0005, 0.004)))
        os.write(requests[1], struct.pack("d", random_source.uniform(0.0005, 0.005)))
        totals["answered"][0] += struct.unpack("d", os.read(answers[0], 8))[0]
        totals["answered"][1] += 1
    os.close(requests[1])
    os.waitpid(child, 0)
    return totals


write(main)
