#!/usr/bin/env python3
"""Measures the time and memory for reading a large recording, and prints them as Markdown.

    large.py JITLISTEN [--samples 1000000] [--threads 64] [--rounds 5] [--recording FILE] [--root DIR] [--keep FILE]
    [--most 2,300]
             [--only lines]

The large recording repeats the samples of a small one on many threads. The small one is the tests' recording by
default; another must come from `perf record -g -e cpu-clock` or have its layout: a sample begins with IP, TID and TIME.
Every third stack lacks some of its outer frames, and every second one has one frame replaced, so that there are tens of
thousands of distinct stacks.

`--most SECONDS,MEGABYTES` fails if `lines` takes more CPU time or peak memory.
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
# Number of distinct samples.
VARIANTS = 200_000
# Byte offsets in a sample: period, length of the call chain, and call chain.
PERIOD, LENGTH, CHAIN = 32, 40, 48


def records(data):
    position = 0
    while position + 8 <= len(data):
        kind, _misc, size = struct.unpack_from("<IHH", data, position)
        yield kind, data[position : position + size]
        position += size


def make(source, target, sample_count, threads):
    """Writes the recording, and returns the number of distinct stacks."""
    file_bytes = bytearray(pathlib.Path(source).read_bytes())
    offset, size = struct.unpack_from("<QQ", file_bytes, 40)
    other_records, samples = [], []
    for kind, record in records(file_bytes[offset : offset + size]):
        (samples if kind == SAMPLE else other_records).append(bytes(record))
    dice = random.Random(1)
    frames = sorted({address for record in samples for address in addresses(record)})
    distinct_chains = set()
    with open(target, "wb") as out:
        # Clear the feature bits, because no feature sections follow the data.
        struct.pack_into("<4Q", file_bytes, 72, 0, 0, 0, 0)
        out.write(file_bytes[:offset])
        out.writelines(other_records)
        last = struct.unpack_from("<Q", samples[-1], 24)[0]
        variants = []
        for number in range(min(sample_count, VARIANTS)):
            record = bytearray(samples[number % len(samples)])
            (length,) = struct.unpack_from("<Q", record, LENGTH)
            if length > 4 and number % 3 == 0:
                keep = dice.randint(4, length)
                del record[CHAIN + 8 * keep : CHAIN + 8 * length]
                struct.pack_into("<Q", record, LENGTH, keep)
                struct.pack_into("<H", record, 6, len(record))
                length = keep
            if length > 4 and number % 2 == 0:
                # Keep the context marker at the start and the leaf address.
                struct.pack_into("<Q", record, CHAIN + 8 * dice.randint(2, length - 1), dice.choice(frames))
            distinct_chains.add(bytes(record[CHAIN : CHAIN + 8 * length]))
            variants.append((record, struct.unpack_from("<I", record, 16)[0]))
        pack = struct.Struct("<IQ").pack_into
        for number in range(sample_count):
            record, pid = variants[number % len(variants)]
            pack(record, 20, pid + number % threads, last + number * 1000)
            out.write(record)
        size = out.tell() - offset
        out.seek(48)
        out.write(struct.pack("<Q", size))
    return len(distinct_chains)


def addresses(record):
    (length,) = struct.unpack_from("<Q", record, LENGTH)
    chain = struct.unpack_from("<%dQ" % length, record, CHAIN)
    return [number for number in chain[2:] if number < 1 << 63]


def measure(words):
    """Returns elapsed seconds, seconds of CPU time, and peak memory in megabytes."""
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
    options = parser.parse_args()
    if options.recording == TESTDATA / "perf.data":
        options.root = options.root or TESTDATA / "root"
    return options


def main():
    options = arguments()
    root = ["--root", str(options.root)] if options.root else []
    with tempfile.TemporaryDirectory() as directory:
        file = options.keep or os.path.join(directory, "large.perf.data")
        stacks = make(options.recording, file, options.samples, options.threads)
        size = os.path.getsize(file) / 1e6
        print(f"{options.samples:,} samples, {options.threads} threads, {stacks:,} different stacks, {size:.0f} MB\n")
        print("| | clock, s | processor, s | memory, MB |\n| --- | --- | --- | --- |")
        out = os.path.join(directory, "out")
        missed = []
        for words in (
            ["lines"],
            ["lines", "--all", "--threads"],
            ["lines", "--html", out],
            ["lines", "--json", out],
            ["flamegraph", "-o", out],
            ["export", "-f", "firefox", "-o", out],
        ):
            if not words[0].startswith(options.only):
                continue
            # The command does not overwrite a file of another kind.
            pathlib.Path(out).unlink(missing_ok=True)
            runs = [measure([options.jitlisten, words[0], file, *words[1:], *root]) for _ in range(options.rounds)]
            clock, processor, memory = (statistics.median(column) for column in zip(*runs))
            name = " ".join(words).replace(out, "OUT")
            print(f"| `{name}` | {clock:.2f} | {processor:.2f} | {memory:.0f} |", flush=True)
            if words[0] == "lines" and options.most and (processor > options.most[0] or memory > options.most[1]):
                missed.append(name)
    if missed:
        sys.exit("more than %s s or %s MB: %s" % (*options.most, ", ".join(missed)))


if __name__ == "__main__":
    main()
