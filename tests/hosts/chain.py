"""The scenario of every test: alpha calls beta, beta calls gamma, and gamma takes nearly all the time.

    chain.py SECONDS [wait] [timer] [cache]

`wait`   read a line from standard input before compiling
`timer`  raise SIGVTALRM inside gamma after half a second of loop time (a debugger stops there)
`cache`  compile with cache=True and print the number of functions loaded from the cache

Numba has no `noinline`. Each function therefore ends in a series of libm calls: too large for LLVM to inline,
negligible next to gamma's loop. Standard output depends neither on timing nor on attached tools.
"""

import math
import signal
import sys
import time

from numba import njit

LOOP = 2_000_000
options = sys.argv[2:]
jit = njit(cache="cache" in options)


@jit
def gamma(n, x):
    for _ in range(n):
        x = x * 0.999 + 1.0 / (x * x + 1.0)
    y = math.erf(x) + math.erfc(x) + math.lgamma(x) + math.gamma(x)
    y += math.sinh(x) + math.cosh(x) + math.tanh(x) + math.tan(x)
    y += math.asinh(x) + math.atan(x) + math.expm1(x) + math.log1p(x)
    return math.atan2(x, 3.0) + 1e-9 * y


@jit
def beta(n, x):
    x = gamma(n, x)
    y = math.erf(x) + math.erfc(x) + math.lgamma(x) + math.gamma(x)
    y += math.sinh(x) + math.cosh(x) + math.tanh(x) + math.tan(x)
    y += math.asinh(x) + math.atan(x) + math.expm1(x) + math.log1p(x)
    return math.atan2(x, 2.0) + 1e-9 * y


@jit
def alpha(n, x):
    x = beta(n, x)
    y = math.erf(x) + math.erfc(x) + math.lgamma(x) + math.gamma(x)
    y += math.sinh(x) + math.cosh(x) + math.tanh(x) + math.tan(x)
    y += math.asinh(x) + math.atan(x) + math.expm1(x) + math.log1p(x)
    return math.atan2(x, 1.0) + 1e-9 * y


if __name__ == "__main__":
    if "wait" in options:
        print("waiting", flush=True)
        sys.stdin.readline()
    print(alpha(10, 1.0))
    if "cache" in options:
        print("from the cache:", sum(sum(f.stats.cache_hits.values()) for f in (alpha, beta, gamma)))
    print("running", flush=True)
    if "timer" in options:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.5)
    deadline = time.process_time() + float(sys.argv[1])
    result = alpha(LOOP, 1.0)
    while time.process_time() < deadline:
        result = alpha(LOOP, 1.0)
    print(result)
