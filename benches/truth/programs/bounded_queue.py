"""A producer and two consumers share a short list, guarded by two conditions of one lock."""

import collections
import random
import threading

from phases import per_second, run_threads, timed, write


def produced(n):
    s = 0
    for i in range(n):  # produced
        s += i & 7  # produced


def consumed(n):
    s = 1
    for i in range(n):  # consumed
        s = (s << 1 ^ i) & 1023  # consumed


def main(seconds, seed):
    totals = {function.__name__: [0.0, 0] for function in (produced, consumed)}
    lengths = {function: per_second(function, totals[function.__name__]) for function in (produced, consumed)}
    lock, items = threading.Lock(), collections.deque()
    not_full, not_empty = threading.Condition(lock), threading.Condition(lock)
    totals_lock, random_source = threading.Lock(), random.Random(seed)

    def work(function, duration):
        spent = [0.0, 0]
        with timed(spent):
            function(int(lengths[function] * duration))
        with totals_lock:
            name = function.__name__
            totals[name] = [a + b for a, b in zip(totals[name], spent)]

    def produce():
        while min(spent for spent, _ in totals.values()) < seconds:
            work(produced, random_source.uniform(0.0005, 0.004))
            with not_full:
                not_full.wait_for(lambda: len(items) < 4)
                items.append(random_source.uniform(0.0005, 0.004))
                not_empty.notify()
        with not_empty:
            items.extend([None, None])
            not_empty.notify_all()

    def consume():
        while True:
            with not_empty:
                not_empty.wait_for(lambda: items)
                duration = items.popleft()
                not_full.notify()
            if duration is None:
                return
            work(consumed, duration)

    run_threads(lambda function: function(), (produce, consume, consume))
    return totals


write(main)
