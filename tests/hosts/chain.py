"""The scenario of every test: alpha calls beta calls gamma, and gamma is where the time goes.

    chain.py SECONDS [wait] [timer] [cache]

`wait`   compile only after a line has come on standard input
`timer`  raise SIGVTALRM inside gamma after half a second of loop time (a debugger stops there)
`cache`  compile with cache=True and print how many functions came from the cache

Numba has no `noinline`, so every function ends in a row of libm calls: too big for LLVM to inline, nothing beside
gamma's loop. What is printed on standard output does not depend on time or on who is watching.
"""

import math
import signal
import sys
import time

from numba import njit

LOOP = 2_000_000
words = sys.argv[2:]
jit = njit(cache="cache" in words)


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
    if "wait" in words:
        print("waiting", flush=True)
        sys.stdin.readline()
    print(alpha(10, 1.0))
    if "cache" in words:
        print("from the cache:", sum(sum(f.stats.cache_hits.values()) for f in (alpha, beta, gamma)))
    print("running", flush=True)
    if "timer" in words:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.5)
    until = time.process_time() + float(sys.argv[1])
    result = alpha(LOOP, 1.0)
    while time.process_time() < until:
        result = alpha(LOOP, 1.0)
    print(result)
