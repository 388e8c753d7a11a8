"""asyncio tasks that await each other: awaiting.py SECONDS [eager]

Only `work` uses much CPU time. It runs in a new task each time, and a profiler must report the awaiting tasks as its
callers.

    main -> by_await -> task of leaf              await task
    main -> by_gather -> inner_gather -> ...      await asyncio.gather(...)
    main -> by_group -> TaskGroup -> ...          async with asyncio.TaskGroup()
    main -> by_group_and_await                    also awaits the group's task directly
    main -> by_chain -> two tasks, one of which awaits the other
    main -> by_two -> no caller                  two tasks await the same task: no caller is shown
"""

import asyncio
import sys
import time


def work(kind):
    total = 0
    for number in range(20000):
        total += number * number
    return total


async def leaf(kind):
    await asyncio.sleep(0)
    return {
        "await": work_for_await,
        "gather": work_for_gather,
        "group": work_for_group,
        "both": work_for_both,
        "chain": work_for_chain,
        "two": work_for_two,
    }[kind](kind)


def work_for_await(kind):
    return work(kind)


def work_for_gather(kind):
    return work(kind)


def work_for_group(kind):
    return work(kind)


def work_for_both(kind):
    return work(kind)


def work_for_chain(kind):
    return work(kind)


def work_for_two(kind):
    return work(kind)


async def by_await():
    await asyncio.create_task(leaf("await"))


async def inner_gather():
    await asyncio.gather(leaf("gather"), leaf("gather"))


async def by_gather():
    await inner_gather()


async def by_group():
    async with asyncio.TaskGroup() as group:
        group.create_task(leaf("group"))


async def by_group_and_await():
    async with asyncio.TaskGroup() as group:
        task = group.create_task(leaf("both"))
        await task


async def link():
    await asyncio.create_task(leaf("chain"))


async def by_chain():
    await asyncio.create_task(link())


async def one_of_two(task):
    await task


async def by_two():
    task = asyncio.create_task(leaf("two"))
    await asyncio.gather(one_of_two(task), one_of_two(task))


async def main():
    if sys.argv[2:] == ["eager"]:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    end = time.thread_time() + float(sys.argv[1])
    while time.thread_time() < end:
        for kind in by_await, by_gather, by_group, by_group_and_await, by_chain, by_two:
            await kind()


asyncio.run(main())
