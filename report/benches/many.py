#!/usr/bin/env python3
"""Measures processor time and memory for reading many recordings of one program, and prints them as Markdown.

    many.py JITLISTEN RECORDING... [--counts 1000,10000] [--vary N] [--directory DIR]

The recordings must come from `jitlisten record`, each with its folder `RECORDING.images`. They are repeated, each copy
with a process number, rank and images of its own, 64 on a machine. In each copy, one of N samples has a stack of its
own: another frame of the recording replaces one of its frames. `diff` compares the folder with itself.
"""

import argparse
import os
import pathlib
import random
import shutil
import struct
import tempfile

from large import CHAIN, LENGTH, SAMPLE, addresses, measure, records

COMM = 3
# Thread number of the `COMM` record that holds the rank (wire/src/perf_data.rs).
RANK_THREAD = 0xFFFF_FFFE
FEATURE, HOSTNAME = 80, (3).to_bytes(8, "little")
RANKS_PER_HOST = 64


def process_number(recording):
    return int(next(recording.with_name(recording.name + ".images").glob("image-*")).name.split("-")[1])


def copy(recording, number, directory, vary):
    """Writes one copy. Its process number has as many digits as the original's, so that no record changes its size."""
    original = process_number(recording)
    digits = len(str(original))
    pid = 10 ** (digits - 1) + number % (9 * 10 ** (digits - 1))
    data = bytearray(recording.read_bytes())
    offset, size = struct.unpack_from("<QQ", data, 40)
    position, host, samples = offset, None, []
    for kind, record in records(bytes(data[offset : offset + size])):
        for at in range(8, min(len(record), 32) - 3, 4):
            if struct.unpack_from("<I", record, at)[0] == original:
                struct.pack_into("<I", data, position + at, pid)
        if kind == COMM and struct.unpack_from("<I", record, 12)[0] == RANK_THREAD:
            data[position + 16 : position + 24] = str(number).encode().ljust(8, b"\0")
        if kind == FEATURE and record[8:16] == HOSTNAME:
            host = record[20:]
        if kind == SAMPLE:
            samples.append((position, record))
        position += len(record)
    dice = random.Random(number)
    frames = sorted({address for _, record in samples for address in addresses(record)})
    for position, record in samples[::vary] if vary else ():
        # Keep the context marker at the start and the leaf address.
        length = struct.unpack_from("<Q", record, LENGTH)[0]
        if length > 2:
            struct.pack_into("<Q", data, position + CHAIN + 8 * dice.randrange(2, length), dice.choice(frames))
    if host is not None:
        # It is in the header's features as well.
        data = data.replace(host, f"node{number // RANKS_PER_HOST}".encode().ljust(len(host), b"\0"))
    rename = {f"{kind}-{original}-": f"{kind}-{pid}-" for kind in ("image", "python")}
    for before, after in rename.items():
        data = data.replace(before.encode(), after.encode())
    target = directory / f"prof.rank{number}.data"
    target.write_bytes(data)
    images = target.with_name(target.name + ".images")
    images.mkdir()
    for file in recording.with_name(recording.name + ".images").iterdir():
        name = file.name
        for before, after in rename.items():
            name = name.replace(before, after)
        os.link(file, images / name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("jitlisten", type=os.path.abspath)
    parser.add_argument("recordings", nargs="+", type=pathlib.Path)
    parser.add_argument("--counts", default="1000,10000")
    parser.add_argument("--vary", type=int, default=0, metavar="N")
    # Hard links need one file system.
    parser.add_argument("--directory")
    options = parser.parse_args()
    print("| recordings | | clock, s | processor, s | memory, MB |\n| --- | --- | --- | --- | --- |")
    for count in map(int, options.counts.split(",")):
        directory = pathlib.Path(tempfile.mkdtemp(dir=options.directory or options.recordings[0].parent))
        try:
            for number in range(count):
                copy(options.recordings[number % len(options.recordings)], number, directory, options.vary)
            bundle = ["bundle", "-o", directory / "bundle", directory]
            for words in (["lines", directory], ["diff", directory, directory], bundle):
                clock, processor, memory = measure([options.jitlisten, *map(str, words)])
                print(f"| {count:,} | `{words[0]}` | {clock:.1f} | {processor:.1f} | {memory:.0f} |", flush=True)
        finally:
            shutil.rmtree(directory)


if __name__ == "__main__":
    main()
