"""Processes made by multiprocessing, each compiling something of its own: many_processes.py fork | forkserver

Standard error has the process numbers, `parent N` and `child N NAME`.
"""

import math
import multiprocessing
import os
import sys

from numba import njit


@njit
def common(x):
    return math.erf(x) + 1.0


def work(number):
    scope = {"math": math}
    exec(f"def of_child_{number}(x):\n    return math.erf(x) + {number}", scope)
    result = njit(scope[f"of_child_{number}"])(1.0)
    # One write: print makes two, and the processes share the file.
    os.write(2, f"child {os.getpid()} of_child_{number}\n".encode())
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
    # The pool forks from a thread of its own: a child forked while a line waits in the buffer prints it again.
    print(total)
    print(of_parent(1.0))
    print(f"parent {os.getpid()}", file=sys.stderr)
