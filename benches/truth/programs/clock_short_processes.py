"""A pool of two processes, with tasks of 0.5 to 5 ms; the pool is replaced after 20 tasks."""

# record: -s
import multiprocessing
import random

from phases import per_second, timed, write


def ordered(n):
    s = 0
    for i in range(n):  # ordered
        s ^= i  # ordered


def counted(n):
    s = 1
    for i in range(n):  # counted
        s = (s * i) & 255  # counted


def run_task(task):
    total = [0.0, 0]
    with timed(total):
        FUNCTIONS[task[0]](task[1])
    return task[0], total[0]


FUNCTIONS = {"ordered": ordered, "counted": counted}


def main(seconds, seed):
    totals = {name: [0.0, 0] for name in FUNCTIONS}
    lengths = {name: per_second(function, totals[name]) for name, function in FUNCTIONS.items()}
    random_source = random.Random(seed)
    while min(spent for spent, _ in totals.values()) < seconds:
        names = [random_source.choice(list(FUNCTIONS)) for _ in range(40)]
        tasks = [(name, int(lengths[name] * random_source.uniform(0.0005, 0.005))) for name in names]
        with multiprocessing.get_context("fork").Pool(2) as pool:
            for name, spent in pool.imap_unordered(run_task, tasks):
                totals[name][0] += spent
                totals[name][1] += 1
            pool.close()
            pool.join()
    return totals


write(main)
