"""Two Python threads that wait for each other's GIL, beside a compiled thread without it."""

# record: --wall
import time

from numba import njit

from phases import per_second, run_threads, timed, wall_time, write


@njit(nogil=True)
def compiled(n):
    s = 0.0
    for i in range(n):  # compiled
        s = s * 0.5 + i  # compiled
    return s


def left(n):
    s = 0
    for i in range(n):  # left
        s ^= i  # left


def right(n):
    s = 1
    for i in range(n):  # right
        s = (s * i) & 255  # right


def main(seconds, _seed):
    compiled(1)
    functions = (compiled, left, right)
    totals = {function.__name__: [0.0, 0] for function in functions}
    lengths = {function: per_second(function, totals[function.__name__]) for function in functions}
    end = time.monotonic() + 3 * seconds

    def work(function):
        while time.monotonic() < end:
            with timed(totals[function.__name__], wall_time):
                function(int(lengths[function] * 0.3))

    run_threads(work, functions)
    return totals


write(main)
