"""Images for code that is running: three threads compute, and images are switched on and off under them.

    late_images.py LIBRARY
"""

import ctypes
import sys
import threading

from numba import njit

LIBRARY = ctypes.CDLL(sys.argv[1])


@njit(nogil=True)
def weigh(n):
    s = 0
    for i in range(n):
        s += i % 7
    return s


right = weigh(100_000)
wrong = 0
done = False


def work():
    global wrong
    while not done:
        wrong += weigh(100_000) != right


threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(50):
    assert LIBRARY.jitlisten_enable(b"image") == 0
    assert LIBRARY.jitlisten_disable(b"image") == 0
done = True
for thread in threads:
    thread.join()
with open("/proc/self/maps") as maps:
    images = sum("/object-" in line and " r-xp " in line for line in maps)
print("wrong:", wrong)
print("images:", "some" if images else "none")
