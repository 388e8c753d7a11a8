"""The chain gamma <- beta, at the bottom of which compiled code crashes, or gets a signal as if it had.

    crashes.py [LIBRARY]

Without a library, Python's faulthandler writes a report of a signal that is sent. With one, compiled code reads where
nothing is mapped, and the library's `ask_when_it_crashes` has said what happens then.
"""

import ctypes
import faulthandler
import math
import signal
import sys

import numba
import numpy as np

crashes = len(sys.argv) > 1
if crashes:
    ctypes.CDLL(sys.argv[1]).ask_when_it_crashes()
else:
    faulthandler.enable()
number = int(signal.SIGSEGV)
send = ctypes.CDLL(None)["raise"]
send.argtypes, send.restype = [ctypes.c_int], ctypes.c_int
#: Nothing is ever mapped in the first page.
nowhere = np.ctypeslib.as_array((ctypes.c_double * 2).from_address(8))


@numba.njit
def gamma(x, values):
    # Too much to be inlined.
    for _ in range(10):
        x = x * 0.999 + 1.0 / (x * x + 1.0)
    if crashes:
        y = values[1]
    else:
        y = 1.0 * send(number)
    y += math.erf(x) + math.erfc(x) + math.lgamma(x) + math.gamma(x)
    y += math.sinh(x) + math.cosh(x) + math.tanh(x) + math.tan(x)
    y += math.asinh(x) + math.atan(x) + math.expm1(x) + math.log1p(x)
    return math.atan2(x, 3.0) + 1e-9 * y


@numba.njit
def beta(x, values):
    x = gamma(x, values)
    y = math.erf(x) + math.erfc(x) + math.lgamma(x) + math.gamma(x)
    y += math.sinh(x) + math.cosh(x) + math.tanh(x) + math.tan(x)
    y += math.asinh(x) + math.atan(x) + math.expm1(x) + math.log1p(x)
    return math.atan2(x, 2.0) + 1e-9 * y


print(beta(1.0, nowhere), flush=True)
