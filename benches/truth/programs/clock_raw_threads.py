"""Two threads that the program makes by `clone`, without libc's knowledge."""

import ctypes
import mmap
import time

import numpy
from numba import carray, cfunc, njit, types

from compiled_clock import cpu_seconds
from phases import write

CLONE_FLAGS = 0x100 | 0x200 | 0x400 | 0x800 | 0x10000 | 0x40000  # VM, FS, FILES, SIGHAND, THREAD, SYSVSEM
STACK_BYTES = 1 << 20

libc = ctypes.CDLL(None)


@njit
def halved(n):
    s = 0.0
    for i in range(n):  # halved
        s = s * 0.5 + i  # halved
    return s


@njit
def rooted(n):
    s = 1.0
    for i in range(n):  # rooted
        s = (s + i) ** 0.5  # rooted
    return s


@cfunc(types.intc(types.CPointer(types.float64)))
def work(pointer):
    """Runs both functions until each has the seconds in [4]: their seconds are in [0] and [1], the runs in [2]."""
    shared = carray(pointer, 8)
    clock = shared[5:7].view(numpy.int64)
    while min(shared[0], shared[1]) < shared[4]:
        start = cpu_seconds(clock)
        shared[7] += halved(10_000_000)
        middle = cpu_seconds(clock)
        shared[7] += rooted(1_000_000)
        shared[0] += middle - start
        shared[1] += cpu_seconds(clock) - middle
        shared[2] += 1
    shared[3] = 1
    return 0


def main(seconds, _seed):
    threads = [numpy.array([0, 0, 0, 0, seconds, 0, 0, 0]) for _ in range(2)]
    stacks = [mmap.mmap(-1, STACK_BYTES) for _ in threads]
    for shared, stack in zip(threads, stacks):
        top = ctypes.addressof(ctypes.c_char.from_buffer(stack)) + STACK_BYTES
        arguments = [work.address, top, CLONE_FLAGS, shared.ctypes.data]
        assert libc.clone(*map(ctypes.c_void_p, arguments)) > 0
    while any(shared[3] == 0 for shared in threads):
        time.sleep(0.05)
    time.sleep(0.05)
    runs = int(sum(shared[2] for shared in threads))
    return {
        name: [sum(float(shared[row]) for shared in threads), runs] for row, name in enumerate(("halved", "rooted"))
    }


write(main)
