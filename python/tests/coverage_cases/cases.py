"""Functions that use every construct that Numba compiles. `drive` runs part of each function; the rest must stay
uncovered."""

import math
import sys

import numpy as np
from decorators import (
    TRUTH,
    address_of,
    cfunc_of,
    chosen,
    fails,
    float64,
    guvectorize,
    int64,
    is_float,
    jit,
    jitclass,
    literal_unroll,
    njit,
    objmode,
    overload,
    prange,
    stencil,
    vectorize,
)


@njit
def chain(x):
    """A docstring, which is not a statement."""
    kind = 0
    if x > 100:
        kind = 1
        kind += x
    elif x > 10:
        kind = 2
    else:
        kind = 3
    return kind


@njit
def leaves_early(values):
    for i in range(values.shape[0]):
        if values[i] < 0:
            return i
        if values[i] > 1e9:
            return -2
    return -1


@njit
def raises(x):
    if x == 0:
        raise ValueError("zero")
    if x == 1:
        raise IndexError(
            "one",
            x,
        )
    if x == 2:
        assert x > 5, "two"
    return 10 / x


@njit
def passes_on(x):
    before = x + 1
    found = raises(x)
    after = found + before
    return after


@njit
def catches(x):
    result = 0
    try:
        if x > 2:
            raise ValueError("large")
        result = 1
    except Exception:
        result = 2
    return result


@njit
def catches_call(x):
    result = 0
    try:
        result = 5
        passes_on(x)
        result = 1
    except Exception:
        result += 2
        if result > 100:
            result = 0
    return result


@njit
def loops_that_do_not_run(n):
    total = 0
    for i in range(n):
        total += i
        if total > 100:
            break
    else:
        total = -1
    while n > 100:
        n -= 1
        continue
    return total


@njit
def short_circuits(a, b):
    if (a > 0
            and b > 0):
        return 1
    if a < 0 or b < 0:
        return 2
    first = 5 if a == 0 else 6
    second = (7
              if b == 3
              else 8)
    return first + second


@njit
def skips(values):
    total = 0
    for v in values:
        if v < 0 or v > 100:
            continue
        if v == 50:
            pass
        elif v == 51:
            break
        total += v
    return total


@njit
def comprehension(n):
    squares = [i * i for i in range(n)
               if i % 2 == 0]
    total = 0
    for v in squares:
        total += v
    array = np.array([j + 1
                      for j in range(n)])
    nothing = [k for k in range(0)]
    return total + array.sum() + len(nothing)


@njit
def callee(x):
    if x > 3:
        return x * 2
    return x - 1


@njit(inline="always")
def inlined(x):
    y = x + 1
    if y > 100:
        y = 0
    return y


@njit(inline="always")
def inlined_loop(n, least):
    total = 0
    for i in range(n):
        if i < least:
            continue
        total += inlined(i)
    return total


@njit(inline="always")
def inlined_raise(x):
    if x > 10:
        raise ValueError("inlined")
    return x


@njit
def calls(x):
    a = callee(x)
    b = inlined(x)

    def nested(q):
        w = q * 2
        if w > 1000:
            w = 0
        return w + 1

    c = nested(b)
    d = (lambda z: z + 1)(c)
    e = inlined_loop(4, 2)
    if x > 100:
        e = inlined(200)
    return a + b + c + d + e


@njit
def calls_raise(x):
    a = x + 1
    b = inlined_raise(a)
    c = b + 1
    return c


@njit
def generator(n):
    for i in range(n):
        if i == 2:
            yield 10
        else:
            yield i
    yield -1


@njit
def uses_generator(n):
    total = 0
    for v in generator(n):
        total += v
        if total > 1:
            break
    return total


@njit
def uses_all(n):
    total = 0
    for v in two_yields(n):
        total += v
    return total


@njit
def two_yields(n):
    a = n
    yield a
    a += 1
    yield a
    if a > 100:
        yield 7


@njit(parallel=True)
def parallel(values, flag):
    n = values.shape[0]
    total = 0.0
    out = np.zeros(n)
    for i in prange(n):
        x = values[i] * 2
        if x > 1e9:
            x = 0.0
            x += 1
        elif x > 1:
            x = 1.0
        out[i] = x
        total += x
    if flag:
        for j in prange(n):
            out[j] += 1
    return total + out.sum()


@njit(parallel=True)
def parallel_branches(values):
    n = values.shape[0]
    out = np.zeros(n)
    for i in prange(n):
        if i % 2 == 0:
            out[i] = 1.0
        else:
            out[i] = 2.0
    for j in prange(n):
        if values[j] > 5:
            continue
        out[j] += inlined(values[j])
    more = values * 2.0 + out
    return more.sum()


@njit(parallel=True)
def parallel_nested(a):
    for i in prange(a.shape[0]):
        for j in prange(a.shape[1]):
            if i == j:
                a[i, j] = 1.0
            else:
                a[i, j] += 2.0
    return a.sum()


@overload(chosen)
def choose(x, y):
    if is_float(x):
        def for_float(x, y):
            z = x + 1
            if y > 5:
                z = 0
            return z
        return for_float

    def for_int(x, y):
        z = x
        return z
    return for_int


@overload(fails, inline="always")
def fail(x):
    def for_all(x):
        y = 1
        try:
            for i in range(y):
                if not (y == 0) and y >= x:
                    raise IndexError(1)
        except:
            assert x > 1, "text"
            y = abs(x - 2)
        else:
            y += 1
        return y
    return for_all


@njit
def uses_overload(x):
    return chosen(x, 1)


@njit
def uses_overload_that_fails(x):
    return fails(x)


@vectorize
def vectorized(x, y):
    if x > y:
        return x
    t = y
    return t


@vectorize(["float64(float64)"])
def vectorized_early(x):
    if x < 0:
        return 0.0
    return math.sqrt(x)


@guvectorize(["void(float64[:], int64, float64[:])"], "(n),()->(n)")
def generalized(x, n, out):
    for i in range(x.shape[0]):
        if n < 0:
            out[i] = 0
        else:
            out[i] = x[i] + n


@cfunc_of("float64(float64)")
def callback(x):
    if x > 10:
        return 1.0
    y = x * 2
    return y


@stencil
def neighbours(a):
    left = a[-1]
    if left > 100:
        left = 0.0
    return left + a[1]


@njit
def uses_stencil(a):
    out = neighbours(a)
    return out.sum()


@jitclass([] if TRUTH else [("v", float64), ("c", int64)])
class Counter:
    def __init__(self, v):
        self.v = v
        self.c = 0

    def add(self, x):
        if x < 0:
            self.c = -1
            return
        self.v += x
        self.c += 1

    @property
    def mean(self):
        if self.c == 0:
            return 0.0
        return self.v / self.c

    def never(self):
        return 3


@njit
def uses_class():
    k = Counter(1.0)
    k.add(2.0)
    return k.mean


@njit
def unrolled():
    values = (1, 2.5, "abc")
    n = 0
    for x in literal_unroll(values):
        n += 1
        if n > 5:
            n = 5
    return n


@njit
def unrolled_in_try(x, y):
    z = x
    if y:
        try:
            for u in literal_unroll((1, 2.5)):
                z += 1
            if x:
                z += z
        except Exception:
            z = y
        z = x
    return z


@njit
def pruned(x, y=None):
    if y is None:
        z = 1
    else:
        z = y + 2
        z += 1
    return x + z


@njit
def several_signatures(x):
    s = x + x
    if s > 4:
        s = x * 1
    else:
        s = x * 2
    return s


@njit
def without_code(n):
    a = 1
    b = 2
    pass
    if n > 0:
        pass
    else:
        a = 3
    if n > 10:
        pass
    c = a
    assert c < 100
    assert n < 50, "too large"
    d = (
        a +
        b
    )
    for k in range(3):
        pass
    global TRUTH
    while True:
        if n > 3:
            break
        n += 1
    x, y = 1, 2
    return c + d + y


@njit
def never_called(x):
    y = x
    return y


@njit
def compiled_and_not_run(flag, x):
    if flag:
        y = callee_not_run(x)
    else:
        y = x
    return y


@njit
def callee_not_run(x):
    if x > 2:
        return 1.5
    return x * 2.0


@njit
def invariants(a, n, k):
    s = 0.0
    for i in range(n):
        t = k * k + 3.0
        if a[i] > 1e3:
            u = t * 2
            s += u
        else:
            v = t / 3.0
            s += v
    return s


@njit
def recursive(n):
    if n < 2:
        return 1
    return n * recursive(n - 1)


@njit
def nested_loops(n):
    c = 0
    for i in range(n):
        for j in range(i):
            if j == 1:
                continue
            if j == 3:
                break
            c += 1
        else:
            c += 10
    while c > 1000:
        c -= 1
    return c


@njit
def containers(n):
    items = []
    for i in range(n):
        items.append(i)
    known = dict()
    known[1] = 2
    if 1 in known:
        items.append(known[1])
    if 5 in known:
        items.append(
            known[5])
    for key, value in known.items():
        items.append(key + value)
    return len(items)


@njit
def selects(x):
    if x > 0.0:
        y = 1.0
    else:
        y = 2.0
    z = max(y, 0.5)
    if z == 7.0:
        z = 8.0
    return z


def interpreted(x):
    if x > 100:
        x = 0
    return x + 1


@njit
def in_object_mode(x):
    y = x + 1
    with objmode(z="int64"):
        z = interpreted(y)
        if z > 100:
            z = 0
    if z > 1000:
        z = 1
    return z


@njit
def leaves_object_mode(x):
    y = x
    with objmode(y="int64"):
        y += 1
        if y > 100:
            y = 0
        y = int(y // x)
    return y


@njit
def leaves_short_object_mode(x):
    if x < 10:
        # fmt: off
        with objmode(x="int64"): x = 10 // x
        # fmt: on
    return x


@njit
def leaves_choice(x):
    y = 1 if x else 2 // x
    return y


@njit
def leaves_comprehension(x):
    y = len([2 // x for i in range(2)])
    return y


@jit(forceobj=True, looplift=False)
def object_mode(x):
    if x > 100:
        return 0
    values = {str(x): interpreted(x)}
    total = 0
    for v in values.values():
        if v > 50:
            continue
        total += v
    return total


@jit(forceobj=True, looplift=True)
def lifted_after_return(a, b):
    x = a
    w1 = 0
    while w1 < 4:
        w1 += 1
        w2 = 0
        while w2 < 0 and a:
            w2 += 1
            return x
    for i3 in range(1):
        if b:
            if a > x:
                x = a
        else:
            pass
        x += 1
    return x + 3


@jit(forceobj=True, looplift=True)
def lifted(n):
    holder = {"a": interpreted(1)}
    total = 0
    for i in range(n):
        if i > 100:
            total += 1000
        total += i
    if total > 10000:
        total = 0
    for i in range(n):
        if i == 2:
            break
        total += 1
    return total + len(holder)


@jit(forceobj=True, looplift=True)
def leaves_lifted(n):
    holder = {"a": n}
    for i in range(2):
        n = 10 // (n - i)


@jit(forceobj=True, looplift=True)
def leaves_lifted_line(n):
    holder = {"a": n}
    # fmt: off
    for i in range(2): n = 10 // (n - i)
    # fmt: on


@njit
def while_loops(k):
    c = 0
    while k != 1:
        if k % 2 == 0:
            k //= 2
        else:
            k = 3 * k + 1
        c += 1
    while True:
        c += 1
        if c > 5:
            return c


@njit
def one_liners(n):
    total = 0
    for i in range(n): total += i
    if total > 100: total = 0
    while total > 50: total -= 1
    return total


@njit
def implicit_return(values, flag):
    if flag:
        values[0] = 1
        return
    for i in range(values.shape[0]):
        values[i] = 2


@njit
def implicit_return_after_no_loop(values):
    for i in range(values.shape[0]):
        values[i] = 2


@njit
def finishes(x):
    total = 0
    try:
        total = 1
        if x > 5:
            total = 2
    finally:
        total += 1
    return total


@njit
def finishes_after_exception(x):
    total = 0
    try:
        try:
            raise ValueError
        finally:
            total = x
    except Exception:
        total += 1
    return total


@njit(
    nogil=True,
)
def long_header(
    a,
    b=2,
):
    return (a
            + b)


@njit
def array_expressions(a, b, flag):
    c = a * 2 + b
    if flag:
        c = c - a * b
    d = np.sqrt(
        c + a * a
    )
    return d.sum()

@njit
def finds(values, limit):
    for i in range(values.shape[0]):
        if values[i] > limit:
            break
    return i


@njit
def breaks_at_once(n):
    while n < 10:
        n += 1
        break
    n += 3
    return n


@njit
def breaks_after_and(x, z):
    for i in range(3):
        if x < 1:
            if x > -6 and z > 1:
                break
        else:
            x = 1
    return x


@njit
def breaks_in_else(x, y):
    for i in range(x):
        for j in range(0):
            y += 1
        else:
            break
        y = 3
    else:
        return 5
    y += 2
    return y


@njit
def passes(x):
    if x > 1:
        pass
    try:
        if x > 2:
            raise ValueError
    except Exception:
        pass
    return x


@njit
def pruned_by_type(x):
    s = 1
    if isinstance(x, int):
        s = 2
    if x > 10:
        return s
    return x


@njit
def pruned_by_constant(x):
    i = 0
    while i < 4:
        i += 1
        for k in range(2):
            x += 1
    if x == 8:
        assert x < 1000
    else:
        x -= 1
    c = 0
    for j in range(2):
        if c > 1:
            x = 5
    while False:
        x = 6
    if not True:
        x = 7
    return x


@njit
def joined_after_pruning(x):
    y = 3
    if x > 1:
        y = x
        if False:
            y = 5
        if x is None:
            y = 4
    return y


@njit
def nested_after_while(x):
    w = 0
    while w < 4:
        w += 1
        for i in range(1):
            x = x + 1
    for j in range(2):
        for k in range(3):
            x += 1
    return x


@njit(parallel=True)
def parallel_copies(n, a):
    if n > 3:
        z = np.ones(n)
    else:
        z = a
    f = 1.0
    if n > 100:
        f = 2.0
    t = f
    w = t
    for i in prange(n):
        b = z[i]
        c = b
        if c > 100:
            c = w
        best = -1
        for j in range(n):
            if z[j] > 1:
                best = j
        first = best
        if first >= 0:
            val = first
        else:
            val = n
        z[i] = c * t + val
    return z


@njit(inline="always")
def corners(x):
    a = np.empty(2)
    a[0] = x
    a[1] = x + 1
    return a


@njit(parallel=True)
def parallel_inlined(n):
    out = np.zeros(n)
    for i in prange(n):
        c = corners(i)
        out[i] = c[0] + c[1]
    return out


@njit
def raised_at_the_end(a, i):
    b = 0
    return (b +
            raises(i) +
            a[0])


@njit(inline="always")
def inlined_end(x):
    y = x * 2
    return 10 // (x - y)


@njit
def raised_in_an_inlined_call(x):
    x += 1
    return inlined_end(x)


@njit
def raises_in_an_inlined_call(x):
    x += 1
    return inlined_raise(x)


@njit
def ends_with_a_call(x):
    if raises(x) > 100:
        x = 1


@njit
def conditions(n):
    s = 0
    k = 0
    while (k + n) > 2 and (n := n - 1) > 0:
        s += 1
    if (s > 1 and
            k > 0 or
            0 < n < 3):
        s = (1
             if s > 3 else
             2)
    return s


@njit
def asserts(a, b):
    assert (5 <= a and
            b <= 1)
    return a


@njit
def raises_at_the_end_of_a_branch(x, z):
    for i in range(2):
        if x == 1:
            if x > z:
                raise ValueError("text")
        elif x == 2:
            z += 1
    return z


@njit
def at_most_two(x):
    if x > 2:
        raise ValueError
    return x


@njit
def calls_short_functions(n):
    total = 0
    for i in range(n):
        if i == 1:
            continue
        total += at_most_two(i)
    return total


@njit
def raises_in_finally(i):
    x = 0
    try:
        x += 1
    finally:
        x += 1 // i
        if x > 100:
            x = 5
        else:
            x = 7
    return x


def drive():
    array_expressions(np.ones(3), np.ones(3), False)
    chain(50)
    leaves_early(np.array([1.0, 2.0, -1.0]))
    for x in (5, 1):
        try:
            raises(x)
        except IndexError:
            pass
    try:
        passes_on(0)
    except ValueError:
        pass
    catches(5)
    catches_call(0)
    loops_that_do_not_run(0)
    short_circuits(0, 3)
    skips(np.array([1, 200, 50, 3]))
    comprehension(6)
    calls(2)
    try:
        calls_raise(20)
    except ValueError:
        pass
    # CPython 3.14 and newer do not report the line after a loop over a generator that ends by itself.
    uses_generator(2 if sys.version_info < (3, 14) else 3)
    uses_all(3)
    parallel(np.ones(1000), False)
    parallel_branches(np.arange(10.0))
    parallel_nested(np.zeros((4, 4)))
    uses_overload(3.0)
    try:
        uses_overload_that_fails(1)
    except AssertionError:
        pass
    vectorized(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    vectorized_early(np.array([1.0, 4.0]))
    generalized(np.ones(5), 3)
    address_of(callback)(3.0)
    uses_stencil(np.arange(10.0))
    uses_class()
    unrolled()
    unrolled_in_try(1, 2)
    pruned(3)
    several_signatures(1)
    several_signatures(10.0)
    without_code(2)
    compiled_and_not_run(False, 3)
    invariants(np.ones(100), 100, 2.0)
    recursive(4)
    nested_loops(3)
    containers(3)
    selects(3.0)
    in_object_mode(3)
    for leaves in (
        leaves_object_mode,
        leaves_short_object_mode,
        leaves_choice,
        leaves_comprehension,
        leaves_lifted,
        leaves_lifted_line,
    ):
        try:
            leaves(0)
        except ZeroDivisionError:
            pass
    object_mode(3)
    lifted(5)
    # On other versions, Numba fails to lift these loops, with and without coverage.
    if sys.version_info < (3, 11) or (3, 12) <= sys.version_info < (3, 14):
        lifted_after_return(4, 1)
    while_loops(6)
    one_liners(3)
    implicit_return(np.ones(3), False)
    implicit_return_after_no_loop(np.ones(0))
    finishes(3)
    finishes_after_exception(3)
    long_header(1)
    finds(np.arange(6.0), 3)
    breaks_at_once(3)
    breaks_after_and(0, 1)
    breaks_in_else(1, 2)
    passes(3)
    pruned_by_type(1)
    pruned_by_constant(1)
    joined_after_pruning(2)
    nested_after_while(1)
    parallel_copies(3, np.ones(3))
    parallel_inlined(3)
    for function, argument in (
        (raised_in_an_inlined_call, -1),
        (raises_in_an_inlined_call, 20),
        (ends_with_a_call, 0),
        (raises_in_finally, 0),
        (calls_short_functions, 2),
        (calls_short_functions, 4),
    ):
        try:
            function(argument)
        except (ValueError, ZeroDivisionError):
            pass
    try:
        raised_at_the_end(np.ones(2), 0)
    except ValueError:
        pass
    conditions(5)
    try:
        asserts(1, 2)
    except AssertionError:
        pass
    raises_at_the_end_of_a_branch(1, 2)
