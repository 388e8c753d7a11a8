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
    # The compiled loop is called from the `for` line. Numba 0.57 runs this loop through the interpreter's C API, too.
    for _ in range(50 * n):
        x = ((x * 0.999 + 1.5) * 0.998 + 2.5) / (((x * 0.997 + 1.5) * 0.996 + 2.5) * 0.995 + x)  # lifted
        x = ((x * 0.999 + 1.5) * 0.998 + 2.5) / (((x * 0.997 + 1.5) * 0.996 + 2.5) * 0.995 + x)  # lifted
        x = ((x * 0.999 + 1.5) * 0.998 + 2.5) / (((x * 0.997 + 1.5) * 0.996 + 2.5) * 0.995 + x)  # lifted
        x = ((x * 0.999 + 1.5) * 0.998 + 2.5) / (((x * 0.997 + 1.5) * 0.996 + 2.5) * 0.995 + x)  # lifted
        x = ((x * 0.999 + 1.5) * 0.998 + 2.5) / (((x * 0.997 + 1.5) * 0.996 + 2.5) * 0.995 + x)  # lifted
        x = ((x * 0.999 + 1.5) * 0.998 + 2.5) / (((x * 0.997 + 1.5) * 0.996 + 2.5) * 0.995 + x)  # lifted
        x = ((x * 0.999 + 1.5) * 0.998 + 2.5) / (((x * 0.997 + 1.5) * 0.996 + 2.5) * 0.995 + x)  # lifted
        x = ((x * 0.999 + 1.5) * 0.998 + 2.5) / (((x * 0.997 + 1.5) * 0.996 + 2.5) * 0.995 + x)  # lifted
        x = ((x * 0.999 + 1.5) * 0.998 + 2.5) / (((x * 0.997 + 1.5) * 0.996 + 2.5) * 0.995 + x)  # lifted
        x = ((x * 0.999 + 1.5) * 0.998 + 2.5) / (((x * 0.997 + 1.5) * 0.996 + 2.5) * 0.995 + x)  # lifted
    return name, x


@phase("objects")
def _(n):
    objects(n)


@phase("lifted")
def _(n):
    lifted(n)


run()
