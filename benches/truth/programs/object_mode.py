"""Object mode: compiled code that calls the interpreter for each operation."""
from numba import jit

from phases import phase, run


@jit(forceobj=True, looplift=False)
def objects(n):
    s = 0.0
    for i in range(20 * n):  # objects
        s = s * 0.5 + i / (s + 1.5)  # objects
    return str(s)


@jit(forceobj=True, looplift=True)
def lifted(n):
    name, x = str(n), 1.5
    # The loop is called, and compiled, from the line of `for`.
    for _ in range(1000 * n):
        x = x * 0.999 + 1.5 / (x + 2.5)  # lifted
    return name, x


@phase("objects")
def _(n):
    objects(n)


@phase("lifted")
def _(n):
    lifted(n)


run()
