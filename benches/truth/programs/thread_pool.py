"""A thread pool with tasks of 1 to 5 ms: some in compiled code that releases the GIL, some in Python."""

import random
from concurrent.futures import ThreadPoolExecutor, wait

from numba import njit

from phases import per_second, timed, write


@njit(nogil=True)
def decayed(n):
    s = 1.0
    for i in range(n):  # decayed
        s = s * 0.999 + 1.0 / (i + 1.5)  # decayed
    return s


def hashed(n):
    s = 7
    for i in range(n):  # hashed
        s = (s * 31 + i) & 0xFFFF  # hashed


def main(seconds, seed):
    functions = (decayed, hashed)
    totals = {function.__name__: [0.0, 0] for function in functions}
    decayed(1)
    lengths = [per_second(function, totals[function.__name__]) for function in functions]
    random_source = random.Random(seed)

    def task(number, duration):
        spent = [0.0, 0]
        with timed(spent):
            functions[number](int(lengths[number] * duration))
        return functions[number].__name__, spent

    with ThreadPoolExecutor(2) as pool:
        while min(spent for spent, _ in totals.values()) < seconds:
            tasks = [(random_source.randrange(2), random_source.uniform(0.001, 0.005)) for _ in range(20)]
            futures = [pool.submit(task, *arguments) for arguments in tasks]
            wait(futures)
            for name, spent in (future.result() for future in futures):
                totals[name] = [a + b for a, b in zip(totals[name], spent)]
    return totals


write(main)
