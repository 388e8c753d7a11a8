"""`literal_unroll` over a tuple of several types. Numba 0.57 and 0.60 crash with (1, 2.5, 3, 4.5)."""
from numba import literal_unroll, njit

from phases import phase, run


@njit
def unroll(values, n):
    s = 1.5
    for _ in range(50 * n):  # unrolled
        for v in literal_unroll(values):  # unrolled
            s = s * 0.9 + v / (s + 2.5)  # unrolled
    return s


@phase("unrolled")
def _(n):
    unroll((1, 2.5, True), n)


run()
