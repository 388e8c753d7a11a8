"""The chain beta -> gamma, in which compiled code crashes, or receives a signal as if it had crashed.

    crashes.py [LIBRARY]

Without a library, gamma raises a signal and Python's faulthandler reports it. With a library, compiled code reads
unmapped memory, after the library's `ask_when_it_crashes` has installed its own handler.
"""

import ctypes
import faulthandler
import math
import signal
import sys

import numba
import numpy as np

should_crash = len(sys.argv) > 1
if should_crash:
    ctypes.CDLL(sys.argv[1]).ask_when_it_crashes()
else:
    faulthandler.enable()
number = int(signal.SIGSEGV)
send = ctypes.CDLL(None)["raise"]
send.argtypes, send.restype = [ctypes.c_int], ctypes.c_int
#: An array in the first page, which is never mapped.
unmapped_array = np.ctypeslib.as_array((ctypes.c_double * 2).from_address(8))


@numba.njit
def gamma(x, values):
    # The loop makes the function too large to be inlined.
    for _ in range(10):
        x = x * 0.999 + 1.0 / (x * x + 1.0)
    if should_crash:
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


print(beta(1.0, unmapped_array), flush=True)
