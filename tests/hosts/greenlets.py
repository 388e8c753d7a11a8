"""Two greenlets that compute in turn. Each greenlet is resumed at a different stack depth from the one at which it was
started: greenlets.py SECONDS START_DEPTH RESUME_DEPTH"""

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


def resumed(task, depth):
    """Recurses through a C function, because Python-to-Python calls use no native stack."""
    return task.switch() if depth == 0 else list(map(resumed, [task], [depth - 1]))


main = greenlet.getcurrent()
burn(1)
tasks = [greenlet.greenlet(body), greenlet.greenlet(body)]
start_depth, resume_depth = int(sys.argv[2]), int(sys.argv[3])
for task in tasks:
    resumed(task, start_depth)
deadline = time.process_time() + float(sys.argv[1])
while time.process_time() < deadline:
    for task in tasks:
        resumed(task, resume_depth)
