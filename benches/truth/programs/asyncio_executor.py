"""Coroutines that work, and that wait for compiled code in an executor's thread."""

import asyncio
import random

from numba import njit

from phases import per_second, timed, write


@njit(nogil=True)
def simulated(n):
    s = 0.5
    for _ in range(n):  # simulated
        s = 3.7 * s * (1.0 - s)  # simulated
    return s


def parsed(n):
    s = 0
    for i in range(n):  # parsed
        s ^= i * 3  # parsed


def timed_call(function, length):
    spent = [0.0, 0]
    with timed(spent):
        function(length)
    return spent


def main(seconds, seed):
    totals = {function.__name__: [0.0, 0] for function in (simulated, parsed)}
    simulated(1)
    lengths = {function: per_second(function, totals[function.__name__]) for function in (simulated, parsed)}
    random_source = random.Random(seed)

    def add(function, spent):
        name = function.__name__
        totals[name] = [a + b for a, b in zip(totals[name], spent)]

    async def client():
        loop = asyncio.get_running_loop()
        while min(spent for spent, _ in totals.values()) < seconds:
            length = int(lengths[simulated] * random_source.uniform(0.001, 0.006))
            add(simulated, await loop.run_in_executor(None, timed_call, simulated, length))
            add(parsed, timed_call(parsed, int(lengths[parsed] * random_source.uniform(0.0005, 0.003))))
            await asyncio.sleep(random_source.uniform(0.0005, 0.003))

    async def clients():
        await asyncio.gather(*(client() for _ in range(3)))

    asyncio.run(clients())
    return totals


write(main)
