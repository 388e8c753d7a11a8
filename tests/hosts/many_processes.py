"""Processes started by multiprocessing, each of which compiles a function: many_processes.py fork | forkserver

Prints the process IDs to standard error: `parent PID` and `child PID NAME`.
"""

import math
import multiprocessing
import os
import sys

from numba import njit


@njit
def common(x):
    return math.erf(x) + 1.0


def work(index):
    scope = {"math": math}
    exec(f"def of_child_{index}(x):\n    return math.erf(x) + {index}", scope)
    result = njit(scope[f"of_child_{index}"])(1.0)
    # A single write(2): print would make two, and the processes share the file.
    os.write(2, f"child {os.getpid()} of_child_{index}\n".encode())
    return common(result)


@njit
def of_parent(x):
    return math.erf(x) + 2.0


if __name__ == "__main__":
    common(1.0)
    method = multiprocessing.get_context(sys.argv[1])
    with method.Pool(3, maxtasksperchild=1) as pool:
        total = sum(pool.map(work, range(4), chunksize=1))
        pool.close()
        pool.join()
    # The pool forks from its own thread. Print only now, because a child would inherit and repeat buffered output.
    print(total)
    print(of_parent(1.0))
    print(f"parent {os.getpid()}", file=sys.stderr)
