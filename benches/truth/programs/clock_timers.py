"""A thread that works in two phases whenever its interval timer has expired."""

import random
import signal

from phases import per_second, timed, write


def read_in(n):
    s = 0
    for i in range(n):  # read_in
        s ^= i  # read_in


def answered(n):
    s = 1
    for i in range(n):  # answered
        s = (s * i) & 255  # answered


def main(seconds, seed):
    functions = (read_in, answered)
    totals = {function.__name__: [0.0, 0] for function in functions}
    lengths = {function: per_second(function, totals[function.__name__]) for function in functions}
    random_source = random.Random(seed)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    signal.setitimer(signal.ITIMER_REAL, 0.004, 0.004)
    while min(spent for spent, _ in totals.values()) < seconds:
        signal.sigwait([signal.SIGALRM])
        for function in functions:
            with timed(totals[function.__name__]):
                function(int(lengths[function] * random_source.uniform(0.0004, 0.001)))
    signal.setitimer(signal.ITIMER_REAL, 0)
    return totals


write(main)
