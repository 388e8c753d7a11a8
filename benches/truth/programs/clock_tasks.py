"""Four asyncio tasks work for 0.2 to 2 ms between sleeps of 0.5 to 10 ms."""
import asyncio
import random

from phases import per_second, timed, write


def parsed(n):
    s = 0
    for i in range(n):  # parsed
        s ^= i  # parsed


def rendered(n):
    s = 1
    for i in range(n):  # rendered
        s = (s * i) & 255  # rendered


async def serve(totals, lengths, seconds, random_source):
    while totals["rendered"][0] < seconds:
        for function in (parsed, rendered):
            with timed(totals[function.__name__]):
                function(int(lengths[function] * random_source.uniform(0.0002, 0.002)))
            await asyncio.sleep(random_source.uniform(0.0005, 0.01))


async def serve_all(totals, lengths, seconds, seed):
    await asyncio.gather(*(serve(totals, lengths, seconds, random.Random(seed + task)) for task in range(4)))


def main(seconds, seed):
    totals = {"parsed": [0.0, 0], "rendered": [0.0, 0]}
    lengths = {function: per_second(function, totals[function.__name__]) for function in (parsed, rendered)}
    asyncio.run(serve_all(totals, lengths, seconds, seed))
    return totals


write(main)
