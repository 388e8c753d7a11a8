#!/usr/bin/env python3
"""A large recording, and what it takes to read it: time and memory, as Markdown.

    large.py JITLISTEN [--samples 1000000] [--threads 64] [--rounds 5] [--recording FILE] [--root DIR] [--keep FILE]
    [--most 2,300]
             [--only lines]

Of a small recording (of the tests', if no other is named; one of `perf record -g -e cpu-clock`, or of that layout: IP,
TID and TIME at the beginning of a sample) every sample is written again and again, on many threads. Every third stack
lacks some of its outer frames, and every second has one of its frames exchanged, so that there are tens of thousands of
different ones.

`--most SECONDS,MEGABYTES`: fails where `lines` takes more, of processor time and of memory at its peak.
"""

import argparse
import os
import pathlib
import random
import statistics
import struct
import sys
import tempfile
import time

TESTDATA = pathlib.Path(__file__).resolve().parents[1] / "testdata" / "sides"
SAMPLE = 9
#: So many different samples are made.
VARIANTS = 200_000
#: What stands behind the time in a sample: the period. Then the length of the chain, and the chain.
PERIOD, LENGTH, CHAIN = 32, 40, 48


def records(data):
    at = 0
    while at + 8 <= len(data):
        kind, _misc, size = struct.unpack_from("<IHH", data, at)
        yield kind, data[at : at + size]
        at += size


def make(source, target, wanted, threads):
    """Writes the recording, and returns how many different stacks it has."""
    whole = bytearray(pathlib.Path(source).read_bytes())
    offset, size = struct.unpack_from("<QQ", whole, 40)
    others, samples = [], []
    for kind, record in records(whole[offset : offset + size]):
        (samples if kind == SAMPLE else others).append(bytes(record))
    dice = random.Random(1)
    frames = sorted({at for record in samples for at in addresses(record)})
    different = set()
    with open(target, "wb") as out:
        # No features behind the data.
        struct.pack_into("<4Q", whole, 72, 0, 0, 0, 0)
        out.write(whole[:offset])
        out.writelines(others)
        last = struct.unpack_from("<Q", samples[-1], 24)[0]
        variants = []
        for number in range(min(wanted, VARIANTS)):
            record = bytearray(samples[number % len(samples)])
            (length,) = struct.unpack_from("<Q", record, LENGTH)
            if length > 4 and number % 3 == 0:
                keep = dice.randint(4, length)
                del record[CHAIN + 8 * keep : CHAIN + 8 * length]
                struct.pack_into("<Q", record, LENGTH, keep)
                struct.pack_into("<H", record, 6, len(record))
                length = keep
            if length > 4 and number % 2 == 0:
                # Neither the mark in front nor the leaf.
                struct.pack_into("<Q", record, CHAIN + 8 * dice.randint(2, length - 1), dice.choice(frames))
            different.add(bytes(record[CHAIN : CHAIN + 8 * length]))
            variants.append((record, struct.unpack_from("<I", record, 16)[0]))
        pack = struct.Struct("<IQ").pack_into
        for number in range(wanted):
            record, pid = variants[number % len(variants)]
            pack(record, 20, pid + number % threads, last + number * 1000)
            out.write(record)
        size = out.tell() - offset
        out.seek(48)
        out.write(struct.pack("<Q", size))
    return len(different)


def addresses(record):
    (length,) = struct.unpack_from("<Q", record, LENGTH)
    chain = struct.unpack_from("<%dQ" % length, record, CHAIN)
    return [number for number in chain[2:] if number < 1 << 63]


def measure(words):
    """Seconds by the clock, seconds of processor time, and megabytes at the peak."""
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.execv(words[0], words)
    _, status, usage = os.wait4(child, 0)
    assert status == 0, (words, status)
    return time.monotonic() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("jitlisten", type=os.path.abspath)
    for name, default in (("samples", 1_000_000), ("threads", 64), ("rounds", 5)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--recording", default=TESTDATA / "perf.data")
    parser.add_argument("--root")
    parser.add_argument("--keep")
    parser.add_argument("--only", default="")
    parser.add_argument("--most", type=lambda text: tuple(map(float, text.split(","))))
    found = parser.parse_args()
    if found.recording == TESTDATA / "perf.data":
        found.root = found.root or TESTDATA / "root"
    return found


def main():
    wanted = arguments()
    root = ["--root", str(wanted.root)] if wanted.root else []
    with tempfile.TemporaryDirectory() as directory:
        file = wanted.keep or os.path.join(directory, "large.perf.data")
        stacks = make(wanted.recording, file, wanted.samples, wanted.threads)
        size = os.path.getsize(file) / 1e6
        print(f"{wanted.samples:,} samples, {wanted.threads} threads, {stacks:,} different stacks, {size:.0f} MB\n")
        print("| | clock, s | processor, s | memory, MB |\n| --- | --- | --- | --- |")
        out = os.path.join(directory, "out")
        missed = []
        for words in (
            ["lines"], ["lines", "--all", "--threads"], ["lines", "--html", out], ["lines", "--json", out],
            ["flamegraph", "-o", out], ["export", "-f", "firefox", "-o", out],
        ):
            if not words[0].startswith(wanted.only):
                continue
            # A file of another kind is not overwritten.
            pathlib.Path(out).unlink(missing_ok=True)
            runs = [measure([wanted.jitlisten, words[0], file, *words[1:], *root]) for _ in range(wanted.rounds)]
            clock, processor, memory = (statistics.median(column) for column in zip(*runs))
            name = " ".join(words).replace(out, "OUT")
            print(f"| `{name}` | {clock:.2f} | {processor:.2f} | {memory:.0f} |", flush=True)
            if words[0] == "lines" and wanted.most and (processor > wanted.most[0] or memory > wanted.most[1]):
                missed.append(name)
    if missed:
        sys.exit("more than %s s or %s MB: %s" % (*wanted.most, ", ".join(missed)))


if __name__ == "__main__":
    main()
