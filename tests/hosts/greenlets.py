"""Two greenlets that compute in turn, each resumed deeper on the stack than it was begun, or less deep: greenlets.py
SECONDS BEGIN RESUME"""

import sys
import time

import greenlet
from numba import njit


@njit
def burn(n):
    x = 1.0
    for _ in range(n):
        x = x * 0.999 + 1.0 / (x * x + 1.0)
    return x


def body():
    while True:
        burn(100_000)
        main.switch()


def resumed(one, depth):
    """Through a function of C: calls from Python to Python need no stack."""
    return one.switch() if depth == 0 else list(map(resumed, [one], [depth - 1]))


main = greenlet.getcurrent()
burn(1)
both = [greenlet.greenlet(body), greenlet.greenlet(body)]
begin, resume = int(sys.argv[2]), int(sys.argv[3])
for one in both:
    resumed(one, begin)
until = time.process_time() + float(sys.argv[1])
while time.process_time() < until:
    for one in both:
        resumed(one, resume)
