"""Several Python threads in code that releases the GIL."""
import time

from numba import njit

from phases import phase, run, run_threads


@njit(nogil=True)
def work(n):
    x = 1.5
    for _ in range(500 * n):  # threads
        x = x * 0.999 + 1.5 / (x + 2.5)  # threads
    return x


@phase("threads", time.process_time)
def _(n):
    run_threads(work, [20 * n] * 2)


run()
