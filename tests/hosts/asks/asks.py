"""The chain beta -> gamma, in which compiled code calls a library that examines its callers.

    asks.py LIBRARY [again|forked|switched]

`again`     compile another function afterwards, and ask from it too
`forked`    do so in a forked child, then ask in the parent again
`switched`  enable the sinks after the first call, and disable the `modules` sink after the second
"""

import ctypes
import math
import os
import sys

import numba

ask = ctypes.CDLL(sys.argv[1]).ask
ask.argtypes, ask.restype = [ctypes.c_double], ctypes.c_double


@numba.njit
def gamma(x):
    # The loop makes the function too large to be inlined.
    for _ in range(10):
        x = x * 0.999 + 1.0 / (x * x + 1.0)
    y = ask(1.0) + math.erf(x) + math.erfc(x) + math.lgamma(x) + math.gamma(x)
    y += math.sinh(x) + math.cosh(x) + math.tanh(x) + math.tan(x)
    y += math.asinh(x) + math.atan(x) + math.expm1(x) + math.log1p(x)
    return math.atan2(x, 3.0) + 1e-9 * y


@numba.njit
def beta(x):
    x = gamma(x)
    y = math.erf(x) + math.erfc(x) + math.lgamma(x) + math.gamma(x)
    y += math.sinh(x) + math.cosh(x) + math.tanh(x) + math.tan(x)
    y += math.asinh(x) + math.atan(x) + math.expm1(x) + math.log1p(x)
    return math.atan2(x, 2.0) + 1e-9 * y


def print_step(label):
    print(label, file=sys.stderr, flush=True)


def compile_another():
    @numba.njit
    def delta(x):
        return beta(x) + 3.0

    return delta


print(beta(1.0), flush=True)
if "again" in sys.argv:
    print_step("again")
    print(compile_another()(1.0), flush=True)
if "forked" in sys.argv:
    child = os.fork()
    if child == 0:
        print_step("child")
        print(compile_another()(1.0), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print_step("parent")
    print(beta(1.0), flush=True)
if "switched" in sys.argv:
    program = ctypes.CDLL(None)
    for sink in (b"image", b"unwind", b"modules"):
        assert program.jitlisten_enable(sink) == 0
    print_step("on")
    print(compile_another()(1.0), flush=True)
    assert program.jitlisten_disable(b"modules") == 0
    print_step("off")
    print(beta(1.0), flush=True)
