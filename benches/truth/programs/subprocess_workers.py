"""Workers in processes of their own, which receive lengths through a pipe and return their CPU time."""

# record: -s
import random
import subprocess
import sys
import time

from phases import per_second, timed, write


def filtered(n):
    s = 3
    for i in range(n):  # filtered
        s = s * 5 + i & 511  # filtered


def summed(n):
    s = 0
    for i in range(n):  # summed
        s += i % 3  # summed


FUNCTIONS = (filtered, summed)


def serve():
    for line in sys.stdin:
        number, length = map(int, line.split())
        started = time.thread_time()
        FUNCTIONS[number](length)
        print(time.thread_time() - started, flush=True)


def main(seconds, seed):
    totals = {function.__name__: [0.0, 0] for function in FUNCTIONS}
    lengths = [per_second(function, totals[function.__name__]) for function in FUNCTIONS]
    random_source, pipe = random.Random(seed), subprocess.PIPE
    command = [sys.executable, __file__, "serve"]
    workers = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(2)]
    while min(spent for spent, _ in totals.values()) < seconds:
        numbers = [random_source.randrange(2) for _ in workers]
        for worker, number in zip(workers, numbers):
            print(number, int(lengths[number] * random_source.uniform(0.001, 0.02)), file=worker.stdin, flush=True)
        for worker, number in zip(workers, numbers):
            total = totals[FUNCTIONS[number].__name__]
            total[0] += float(worker.stdout.readline())
            total[1] += 1
    for worker in workers:
        worker.communicate()
    return totals


if sys.argv[1:] == ["serve"]:
    serve()
else:
    write(main)
