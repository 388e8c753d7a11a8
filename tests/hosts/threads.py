"""Four Python threads compile four different functions simultaneously, then run them in parallel: threads.py SECONDS"""

import sys
import threading
import time

from numba import njit

LOOP = 2_000_000
SOURCE = """
def {name}(n, x):
    for _ in range(n):
        x = x * {factor} + 1.0 / (x * x + {term})
    return x
"""
NAMES = ("spring", "summer", "autumn", "winter")
results = {}
barrier = threading.Barrier(len(NAMES))
seconds = float(sys.argv[1])


def season(index, name):
    scope = {}
    exec(SOURCE.format(name=name, factor=0.9 - index / 10, term=index + 1), scope)
    function = njit(nogil=True)(scope[name])
    barrier.wait()
    results[name] = function(10, 1.0)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        function(LOOP, 1.0)


threads = [threading.Thread(target=season, args=pair) for pair in enumerate(NAMES)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for name in NAMES:
    print(name, results[name])
