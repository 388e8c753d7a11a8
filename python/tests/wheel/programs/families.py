"""Children of every kind, each of which compiles and works: `families.py KIND`. Prints the PID of each process that
does, in lines `worked PID`."""

import multiprocessing
import os
import sys
import time

import numba


@numba.njit
def kernel(n):
    total = 0.0
    for i in range(n):
        total += i ** 0.5
    return total


def work(_=None):
    # Compiles, for it is the first call in this process.
    kernel(10)
    until = time.process_time() + 0.3
    while time.process_time() < until:
        kernel(100_000)
    os.write(1, b"worked %d\n" % os.getpid())


def forked(body):
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        return
    body()
    os._exit(0)


def daemon():
    os.setsid()
    os.chdir("/")

    def grandchild():
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.closerange(3, 256)
        work()

    forked(grandchild)


def replaced():
    os.execv(sys.executable, [sys.executable, os.path.abspath(__file__), "work"])


KINDS = {
    "work": work,
    "fork": lambda: forked(work),
    "fork twice": lambda: forked(lambda: forked(work)),
    "daemon": lambda: forked(daemon),
    "exec": replaced,
    "fork and exec": lambda: forked(replaced),
}

if __name__ == "__main__":
    kind = sys.argv[1]
    if kind in KINDS:
        KINDS[kind]()
    else:
        method, tasks = kind.split(", ")
        context = multiprocessing.get_context(method)
        with context.Pool(2, maxtasksperchild=int(tasks) or None) as pool:
            pool.map(work, range(3), chunksize=1)
            pool.close()
            pool.join()
