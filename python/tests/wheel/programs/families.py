"""Compiles and works in child processes: `families.py KIND`. Each worker process prints `worked PID`."""

import multiprocessing
import os
import sys
import time

import numba


@numba.njit
def kernel(n):
    total = 0.0
    for i in range(n):
        total += i**0.5
    return total


def work(_=None):
    # The first call in each process compiles the kernel.
    kernel(10)
    deadline = time.process_time() + 0.3
    while time.process_time() < deadline:
        kernel(100_000)
    os.write(1, b"worked %d\n" % os.getpid())


def run_in_fork(body):
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
        devnull = os.open(os.devnull, os.O_RDONLY)
        os.dup2(devnull, 0)
        os.closerange(3, 256)
        work()

    run_in_fork(grandchild)


def exec_self():
    os.execv(sys.executable, [sys.executable, os.path.abspath(__file__), "work"])


KINDS = {
    "work": work,
    "fork": lambda: run_in_fork(work),
    "fork twice": lambda: run_in_fork(lambda: run_in_fork(work)),
    "daemon": lambda: run_in_fork(daemon),
    "exec": exec_self,
    "fork and exec": lambda: run_in_fork(exec_self),
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
