"""Python functions with a known distribution of time: python python_frames.py SECONDS. Prints the time of `long` as a
percentage of the time of `long` and `short` together.

The other functions cover recursion, generators, coroutines, callbacks from C, exec, and short-lived code objects.
"""

import asyncio
import sys
import time


def burn(count):
    total = 0
    for number in range(count):
        total += number * number
    return total


def long():
    return burn(6000)


def short():
    return burn(2000)


def recursive(depth):
    return recursive(depth - 1) if depth else burn(5000)


def generator():
    for _ in range(3):
        yield burn(2000)


async def coroutine():
    await asyncio.sleep(0)
    return burn(500)


def key(value):
    return burn(500) - value


def forgotten(number):
    """Calls a function with a new name, code object and line, usually at the address of the previous one's code
    object."""
    names = {"burn": burn}
    exec(f"{chr(10) * (number % 50 * 2)}def short_lived_{number}():\n    return burn(5000)", names)
    return names[f"short_lived_{number}"]()


def ugly(number):
    recursive(30)
    sum(generator())
    sorted(range(10), key=key)
    forgotten(number)


def main():
    end = time.thread_time() + float(sys.argv[1])
    spent = {long: 0.0, short: 0.0}
    number = 0
    while time.thread_time() < end:
        for function in spent:
            before = time.thread_time()
            function()
            spent[function] += time.thread_time() - before
        if number % 4 == 0:
            ugly(number)
        if number % 100 == 0:
            asyncio.run(coroutine())
        number += 1
    print(f"{spent[long] / sum(spent.values()) * 100:.2f}", flush=True)


main()
