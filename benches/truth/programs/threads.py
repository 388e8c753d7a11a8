"""Several Python threads in code that releases the GIL."""
import threading
import time

from numba import njit

from phases import phase, run


@njit(nogil=True)
def work(n):
    x = 1.5
    for _ in range(500 * n):  # threads
        x = x * 0.999 + 1.5 / (x + 2.5)  # threads
    return x


@phase("threads", time.process_time)
def _(n):
    threads = [threading.Thread(target=work, args=(20 * n,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


run()
