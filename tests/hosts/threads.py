"""Four Python threads compile four different functions at once and then run them side by side: threads.py SECONDS"""

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
together = threading.Barrier(len(NAMES))
seconds = float(sys.argv[1])


def season(index, name):
    scope = {}
    exec(SOURCE.format(name=name, factor=0.9 - index / 10, term=index + 1), scope)
    function = njit(nogil=True)(scope[name])
    together.wait()
    results[name] = function(10, 1.0)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        function(LOOP, 1.0)


threads = [threading.Thread(target=season, args=pair) for pair in enumerate(NAMES)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for name in NAMES:
    print(name, results[name])
