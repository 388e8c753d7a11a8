"""jitclasses: creation, attributes, methods."""
from numba import float64, njit
from numba.experimental import jitclass

from phases import phase, run


@jitclass([("x", float64), ("y", float64)])
class Point:
    def __init__(self, x, y):
        self.x = x  # created
        self.y = y  # created

    def move(self, by):
        self.x = self.x * 0.999 + by / (self.y + 2.5)  # moved
        self.y = self.y * 0.5 + 1.5 / (self.x + 1.0)  # moved


@njit
def create(n):
    s = 0.0
    for i in range(50 * n):  # created
        p = Point(i, 0.5)  # created
        s += p.x  # created
    return s


@njit
def move(n):
    p = Point(1.0, 0.5)
    for i in range(100 * n):  # moved
        p.move(i)  # moved
    return p.x


@phase("created")
def _(n):
    create(n)


@phase("moved")
def _(n):
    move(n)


run()
