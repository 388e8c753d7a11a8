"""The chain gamma <- beta, at the bottom of which compiled code gets a signal that Python's faulthandler writes a report of.
"""

import ctypes
import faulthandler
import math
import signal

import numba

faulthandler.enable()
number = int(signal.SIGSEGV)
send = ctypes.CDLL(None)["raise"]
send.argtypes, send.restype = [ctypes.c_int], ctypes.c_int


@numba.njit
def gamma(x):
    # Too much to be inlined.
    for _ in range(10):
        x = x * 0.999 + 1.0 / (x * x + 1.0)
    y = send(number) + math.erf(x) + math.erfc(x) + math.lgamma(x) + math.gamma(x)
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
