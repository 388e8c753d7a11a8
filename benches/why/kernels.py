"""Kernels with one hot loop each, what helps them, and the rule that has to say so.

    kernels.py run SECONDS [NAME...]    each kernel for so many seconds of processor time (to be recorded)
    kernels.py compare [NAME...]        the slow and the changed kernel, interleaved: RULE SLOW:CHANGED as a ratio of minima
    kernels.py rules                    NAME LINE RULE of each kernel; a rule of `-` is a loop that needs no advice

A kernel's hot line ends with `# hot`; `RULES` says what is expected of it.
"""

import inspect
import math
import sys
import time

import numpy as np
from numba import njit, types
from numba.typed import Dict

N = 20_000


@njit
def total(a):
    s = 0.0
    for i in range(a.shape[0]):
        s += a[i]  # hot
    return s


@njit(fastmath={"reassoc"})
def total_changed(a):
    s = 0.0
    for i in range(a.shape[0]):
        s += a[i]
    return s


@njit
def dot(a, b):
    s = 0.0
    for i in range(len(a)):
        s += a[i] * b[i]  # hot
    return s


@njit(fastmath={"reassoc"})
def dot_changed(a, b):
    s = 0.0
    for i in range(len(a)):
        s += a[i] * b[i]
    return s


@njit
def scaled(a, b):
    for i in range(len(a)):
        b[i] = 1.5 * a[i] + b[i] * 0.25  # hot


@njit
def ratio(a, b, out):
    for i in range(len(a)):
        out[i] = a[i] / b[i]  # hot


@njit(error_model="numpy")
def ratio_changed(a, b, out):
    for i in range(len(a)):
        out[i] = a[i] / b[i]


@njit
def bell(a, out):
    for i in range(len(a)):
        out[i] = math.exp(-a[i])  # hot


@njit
def sine(a, out):
    for i in range(len(a)):
        out[i] = math.sin(a[i])  # hot


@njit
def widened(a, out):
    for i in range(len(a)):
        out[i] = a[i] * 0.1  # hot


@njit
def widened_changed(a, out):
    for i in range(len(a)):
        out[i] = a[i] * np.float32(0.1)


@njit
def bins(x, out, d):
    for i in range(len(x)):
        out[i] = x[i] // d  # hot


@njit
def bins_changed(x, out, d):
    for i in range(len(x)):
        out[i] = x[i] // 7


@njit
def remainder(x, out, d):
    for i in range(len(x)):
        out[i] = x[i] % d  # hot


@njit
def remainder_changed(x, out, d):
    for i in range(len(x)):
        out[i] = x[i] % 256


@njit
def running(a, out):
    s = 0.0
    for i in range(len(a)):
        s += a[i]  # hot
        out[i] = s


@njit
def chosen(a, index, out):
    for i in range(len(index)):
        out[i] = math.sqrt(a[index[i]])  # hot


@njit
def iterated(a):
    s = 0.0
    for x in a:
        s += x  # hot
    return s


@njit(fastmath={"reassoc"})
def iterated_changed(a):
    s = 0.0
    for i in range(len(a)):
        s += a[i]
    return s


@njit
def roots(a, out):
    for i in range(len(a)):
        out[i] = math.sqrt(a[i])  # hot


@njit
def temporaries(a):
    s = 0.0
    for i in range(200):
        v = a[i : i + 32] * 2.0  # hot
        s += v[3]
    return s


@njit
def temporaries_changed(a):
    s = 0.0
    for i in range(200):
        s += a[i + 3] * 2.0
    return s


@njit
def looked_up(keys, d):
    s = 0.0
    for i in range(len(keys)):
        s += d[keys[i]]  # hot
    return s


@njit
def smoothed_in_place(a):
    for i in range(1, len(a) - 1):
        a[i] = 0.5 * (a[i - 1] + a[i + 1])  # hot


@njit
def integers(x):
    s = 0
    for i in range(len(x)):
        s += x[i]  # hot
    return s


@njit
def largest(a):
    m = a[0]
    for i in range(len(a)):
        if a[i] > m:  # hot
            m = a[i]
    return m


@njit
def largest_changed(a):
    m0 = m1 = m2 = m3 = a[0]
    n = len(a) // 4 * 4
    for i in range(0, n, 4):
        m0, m1, m2, m3 = max(m0, a[i]), max(m1, a[i + 1]), max(m2, a[i + 2]), max(m3, a[i + 3])
    m = max(max(m0, m1), max(m2, m3))
    for i in range(n, len(a)):
        m = max(m, a[i])
    return m


@njit
def present(a):
    s = 0.0
    for i in range(len(a)):
        if not np.isnan(a[i]):  # hot
            s += a[i]
    return s


@njit(fastmath={"reassoc"})
def present_changed(a):
    s = 0.0
    for i in range(len(a)):
        s += 0.0 if np.isnan(a[i]) else a[i]
    return s


@njit
def appended(a):
    found = [0.0]
    for i in range(len(a)):
        found.append(a[i] * 2.0)  # hot
    return found[-1]


@njit
def appended_changed(a):
    found = np.empty(len(a))
    for i in range(len(a)):
        found[i] = a[i] * 2.0
    return found[-1]


@njit
def refused(a, out):
    for i in range(len(a)):
        if a[i] < 0:
            raise ValueError("negative")
        out[i] = a[i] * 2.0  # hot


@njit
def refused_changed(a, out):
    bad = False
    for i in range(len(a)):
        bad |= a[i] < 0
    if bad:
        raise ValueError("negative")
    for i in range(len(a)):
        out[i] = a[i] * 2.0


RULES = {
    "total": "fp-order",
    "dot": "fp-order",
    "scaled": "-",
    "ratio": "division-check",
    "bell": "math-call",
    "sine": "math-call",
    "widened": "float-widening",
    "bins": "integer-division",
    "remainder": "integer-division",
    "running": "recurrence",
    "chosen": "gather",
    "iterated": "strided-sum",
    "roots": "-",
    "temporaries": "allocation",
    "looked_up": "typed-dict",
    "smoothed_in_place": "recurrence",
    "integers": "-",
    "largest": "maximum",
    "present": "conditional-sum",
    "appended": "list-growth",
    "refused": "exception-exit",
}


def arguments():
    random = np.random.default_rng(0)
    a, b, out = random.random(N) + 0.5, random.random(N) + 0.5, np.zeros(N)
    a32, out32 = a.astype(np.float32), np.zeros(N, np.float32)
    x, ints = random.integers(0, 100_000, N), np.zeros(N, np.int64)
    index = random.integers(0, N, N)
    d = Dict.empty(types.int64, types.float64)
    for key in range(1000):
        d[key] = 0.5 * key
    return {
        "total": (a,), "dot": (a, b), "scaled": (a, b), "ratio": (a, b, out), "bell": (a, out), "sine": (a, out),
        "widened": (a32, out32), "bins": (x, ints, 7), "remainder": (x, ints, 256), "running": (a, out),
        "chosen": (a, index, out), "iterated": (a,), "roots": (a, out), "temporaries": (a,), "looked_up": (x % 1000, d),
        "smoothed_in_place": (a.copy(),), "integers": (x,), "largest": (a,),
        "present": (np.where(a < 0.6, np.nan, a),), "appended": (a,), "refused": (a, out),
    }


def line_of(name):
    lines, first = inspect.getsourcelines(globals()[name].py_func)
    return next(first + at for at, line in enumerate(lines) if line.endswith("# hot\n"))


def run(seconds, names):
    given = arguments()
    for name in names:
        kernel = globals()[name]
        kernel(*given[name])
        until = time.process_time() + seconds
        while time.process_time() < until:
            kernel(*given[name])


def quickest(kernel, given):
    began = time.perf_counter()
    for _ in range(20):
        kernel(*given)
    return time.perf_counter() - began


def compare(names):
    given = arguments()
    for name in names:
        slow, changed = globals()[name], globals().get(f"{name}_changed")
        if changed is None:
            continue
        pairs = [(quickest(slow, given[name]), quickest(changed, given[name])) for _ in range(30)][1:]
        print(f"{RULES[name]}\t{name}\t{min(pair[0] for pair in pairs) / min(pair[1] for pair in pairs):.1f}")


def main(what, *rest):
    if what == "run":
        run(float(rest[0]), rest[1:] or RULES)
    elif what == "compare":
        compare(rest or RULES)
    else:
        for name, rule in RULES.items():
            print(name, line_of(name), rule, sep="\t")


if __name__ == "__main__":
    main(*sys.argv[1:])
