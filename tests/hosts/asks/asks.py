"""The chain gamma <- beta, at the bottom of which compiled code calls a library that asks who called it.

    asks.py LIBRARY [again]

`again`: a second function is compiled, and asked, after the first one has been.
"""

import ctypes
import math
import sys

import numba

ask = ctypes.CDLL(sys.argv[1]).ask
ask.argtypes, ask.restype = [ctypes.c_double], ctypes.c_double


@numba.njit
def gamma(x):
    # Too much to be inlined.
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


print(beta(1.0), flush=True)
if "again" in sys.argv:

    @numba.njit
    def delta(x):
        return beta(x) + 3.0

    print("again", file=sys.stderr, flush=True)
    print(delta(1.0), flush=True)
