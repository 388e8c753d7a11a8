"""Small programs, one for each kind of code that Numba generates. Each program compiles a function, runs it and returns
the result.

They are compiled with and without line tables; the machine code must be identical.
"""

import math
import sys
from typing import Callable, Dict

import numpy as np
from numba import (
    cfunc,
    float64,
    guvectorize,
    int64,
    jit,
    literal_unroll,
    njit,
    objmode,
    prange,
    stencil,
    typeof,
    types,
    vectorize,
)
from numba.experimental import jitclass
from numba.extending import overload, register_jitable
from numba.typed import Dict as TypedDict
from numba.typed import List as TypedList

import other_file

PROGRAMS: Dict[str, Callable[[], object]] = {}
# Names of the programs in a selection that has one program of each kind and takes a quarter of the time.
SHORT = set()

REALS = np.linspace(0.5, 9.5, 40)
INTEGERS = np.arange(40)
SQUARE = np.arange(36.0).reshape(6, 6)


def register(body):
    PROGRAMS[body.__name__] = body
    return body


def in_short_selection(body):
    SHORT.add(body.__name__)
    return register(body)


@in_short_selection
def simple_loop():
    @njit
    def f(a):
        s = 0.0
        for i in range(a.size):
            s += a[i] * 2
        return s

    return f(REALS)


@register
def transcendental():
    @njit
    def f(a):
        s = 0.0
        for x in a:
            s += math.exp(-x) + math.sin(x) * math.cos(x)
        return s

    return f(REALS)


@in_short_selection
def calls():
    @njit
    def inner(x, k):
        return math.exp(-x * k) + x

    @njit
    def middle(a, k):
        s = 0.0
        for x in a:
            s += inner(x, k)
        return s

    @njit
    def outer(a):
        return middle(a, 2) + middle(a, 3)

    return outer(REALS)


@register
def call_not_inlined():
    @njit
    def large(a):
        b = np.sort(a)
        return b[0] + b[-1]

    @njit
    def f(a):
        return large(a) + large(a[2:])

    return f(REALS)


@register
def fastmath():
    @njit(fastmath=True)
    def f(a):
        s = 0.0
        for x in a:
            s += x * x
        return s

    return round(f(REALS), 6)


@register
def error_model():
    @njit(error_model="numpy")
    def f(a):
        s = 0.0
        for i in range(a.size):
            s += 1 / a[i]
        return s

    return f(REALS)


@register
def boundscheck():
    @njit(boundscheck=True)
    def f(a, i):
        return a[i]

    return f(REALS, 3)


@register
def nogil():
    @njit(nogil=True)
    def f(a):
        return a.sum()

    return f(REALS)


@register
def inline_never():
    @njit(inline="never")
    def g(x):
        return x + 1

    @njit
    def f(x):
        return g(x) * g(x + 1)

    return f(3)


@in_short_selection
def inline_always():
    @njit(inline="always")
    def g(x):
        y = x * 3
        return y + math.sqrt(x)

    @njit
    def f(a):
        s = 0.0
        for x in a:
            s += g(x)
        return s

    return f(REALS)


@in_short_selection
def inline_always_other_file():
    @njit
    def f(a):
        s = 0.0
        for x in a:
            s += other_file.inlined(x)
        return s

    return f(REALS)


@in_short_selection
def inline_always_nested():
    @njit(inline="always")
    def inner(x):
        if x > 4:
            return math.sqrt(x)
        return x * 2

    @njit(inline="always")
    def middle(x):
        return inner(x) + inner(x + 1)

    @njit(parallel=True)
    def f(a):
        s = 0.0
        for i in prange(a.size):
            s += middle(a[i]) + other_file.inlined(a[i])
        return s

    return round(f(REALS), 6)


@register
def inlined_in_objmode():
    # Numba pickles the function that it creates from an `objmode` block; the pickle becomes part of the code.
    @njit(inline="always")
    def g(x):
        return x * 2 + 1

    @njit
    def f(x):
        y = g(x)
        with objmode(z="float64"):
            names = [str(i) for i in range(3)]
            z = float(names[1]) + g(y)
        return z * g(y)

    return f(2.5)


@register
def other_module():
    @njit
    def f(a):
        s = 0.0
        for x in a:
            s += other_file.called(x)
        return s

    return f(REALS)


@in_short_selection
def prange_map():
    @njit(parallel=True)
    def f(a):
        b = np.empty_like(a)
        for i in prange(a.size):
            b[i] = math.sqrt(a[i]) + 1
        return b

    return f(REALS).sum()


@in_short_selection
def prange_reduction():
    @njit(parallel=True)
    def f(a):
        s = 0.0
        for i in prange(a.size):
            s += a[i] * a[i]
        return s

    return round(f(REALS), 6)


@register
def prange_reductions():
    @njit(parallel=True)
    def f(a):
        s = 0.0
        m = a[0]
        p = 1.0
        for i in prange(a.size):
            s += a[i]
            m = max(m, a[i])
            p *= 1.0 + a[i] * 1e-3
        return s, m, p

    return [round(x, 6) for x in f(REALS)]


@register
def prange_array_reduction():
    @njit(parallel=True)
    def f(a):
        s = np.zeros(4)
        for i in prange(a.size):
            s += a[i]
        return s

    return f(REALS).round(6).tolist()


@register
def prange_nested():
    @njit(parallel=True)
    def f(a):
        s = 0.0
        for i in prange(a.shape[0]):
            for j in prange(a.shape[1]):
                s += a[i, j]
        return s

    return round(f(SQUARE), 6)


@register
def prange_calls():
    @njit
    def g(x):
        return math.exp(-x)

    @njit(parallel=True)
    def f(a):
        b = np.empty_like(a)
        for i in prange(a.size):
            b[i] = g(a[i]) + other_file.called(a[i])
        return b

    return round(f(REALS).sum(), 6)


@in_short_selection
def parallel_array_expression():
    @njit(parallel=True)
    def f(a, b):
        return (a * 2 + b).sum()

    return round(f(REALS, REALS), 6)


@register
def parallel_numpy():
    @njit(parallel=True)
    def f(a):
        b = np.ones(a.size) + np.cos(a)
        return b.mean() + b.max()

    return round(f(REALS), 6)


@in_short_selection
def vectorized():
    @vectorize([float64(float64, float64)])
    def f(x, y):
        return math.sqrt(x) + y

    return f(REALS, REALS).sum()


@register
def vectorized_dynamic():
    @vectorize
    def f(x, y):
        return x * 2 + y

    return f(REALS, REALS).sum() + f(INTEGERS, INTEGERS).sum()


@register
def vectorized_parallel():
    @vectorize([float64(float64)], target="parallel")
    def f(x):
        return math.exp(-x)

    return round(f(REALS).sum(), 6)


@register
def vectorized_branches():
    @vectorize([int64(int64), float64(float64)])
    def f(x):
        if x > 3:
            return x * 2
        return x - 1

    return f(INTEGERS).sum()


@register
def vectorized_in_njit():
    @vectorize
    def g(x):
        return x + 2

    @njit
    def f(a):
        return g(a).sum()

    return f(REALS)


@in_short_selection
def gufunc():
    @guvectorize([(float64[:], float64[:])], "(n)->(n)")
    def f(a, out):
        s = 0.0
        for i in range(a.size):
            s += a[i]
            out[i] = s

    return f(SQUARE).sum()


@register
def gufunc_parallel():
    @guvectorize([(float64[:], float64, float64[:])], "(n),()->(n)", target="parallel")
    def f(a, k, out):
        for i in range(a.size):
            out[i] = a[i] * k

    return f(SQUARE, 2.0).sum()


@register
def gufunc_scalar_result():
    @guvectorize([(int64[:], int64[:])], "(n)->()")
    def f(a, out):
        out[0] = 0
        for x in a:
            out[0] += x

    return int(f(INTEGERS))


@in_short_selection
def c_callback():
    @cfunc(float64(float64))
    def f(x):
        return x * x + 1

    return f.ctypes(3.0)


@register
def c_callback_called():
    @njit
    def g(x):
        return math.sqrt(x)

    @cfunc(float64(float64))
    def f(x):
        if x < 0:
            return 0.0
        return g(x)

    return f.ctypes(9.0)


@register
def c_callback_in_njit():
    @cfunc(int64(int64))
    def g(x):
        return x + 4

    @njit
    def f(x):
        return g(x)

    return f(3)


@in_short_selection
def stencil_kernel():
    @stencil
    def kernel(a):
        return 0.25 * (a[0, 1] + a[1, 0] + a[0, -1] + a[-1, 0])

    @njit
    def f(a):
        return kernel(a)

    return f(SQUARE).sum()


@register
def stencil_parallel():
    @stencil
    def kernel(a):
        return a[-1] + a[1]

    @njit(parallel=True)
    def f(a):
        return kernel(a)

    return f(REALS).sum()


@register
def stencil_direct():
    @stencil(neighborhood=((-2, 0),))
    def kernel(a):
        c = 0.0
        for i in range(-2, 1):
            c += a[i]
        return c

    return kernel(REALS).sum()


@in_short_selection
def array_expression():
    @njit
    def f(a, b):
        return a * 2 + np.sin(b) / (1 + a)

    return f(REALS, REALS).sum()


@register
def array_expression_views():
    @njit
    def f(a):
        return (a[1:, 1:] - a[:-1, 1:]) ** 2 + a[1:, 1:].T

    return f(SQUARE).sum()


@in_short_selection
def generator():
    @njit
    def g(n):
        for i in range(n):
            yield i * 2

    @njit
    def f(n):
        s = 0
        for x in g(n):
            s += x
        return s

    return f(10), list(g(3))


@register
def generator_of_arrays():
    @njit
    def g(a):
        for i in range(3):
            b = a * i
            yield b.sum()
        yield -1.0

    return list(g(REALS))


@register
def generator_expression():
    @njit
    def f(n):
        return [x * x for x in range(n) if x % 2]

    return f(9)


@in_short_selection
def jit_class():
    @jitclass([("total", float64), ("count", int64)])
    class Mean:
        def __init__(self, first):
            self.total = first
            self.count = 1

        def add(self, x):
            self.total += x
            self.count += 1

        @property
        def value(self):
            return self.total / self.count

    @njit
    def f(a):
        m = Mean(0.0)
        for x in a:
            m.add(x)
        return m.value

    m = Mean(1.0)
    m.add(2.0)
    return f(REALS), m.value


@register
def jit_class_array():
    @jitclass([("data", float64[:])])
    class Box:
        def __init__(self, n):
            self.data = np.zeros(n)

        def fill(self, x):
            for i in range(self.data.size):
                self.data[i] = x + i
            return self

    return Box(4).fill(2.0).data.sum()


@in_short_selection
def typed_dict():
    @njit
    def f(n):
        d = TypedDict.empty(types.int64, types.float64)
        for i in range(n):
            d[i] = i * 0.5
        s = 0.0
        for k in d:
            s += d[k]
        return s

    return f(10)


@register
def typed_dict_strings():
    @njit
    def f():
        d = {"a": 1, "b": 2}
        d["c"] = 3
        return d["a"] + d["c"]

    return f()


@register
def typed_list():
    @njit
    def f(n):
        x = TypedList()
        for i in range(n):
            x.append(i * 2)
        return sum(x) + x.pop()

    return f(6)


@register
def reflected_list():
    @njit
    def f(n):
        x = [1.0]
        for i in range(n):
            x.append(float(i))
        x.sort()
        return x[-1]

    return f(5)


@register
def sets():
    @njit
    def f(a):
        s = set()
        for x in a:
            s.add(x % 7)
        return len(s)

    return f(INTEGERS)


@register
def tuples():
    @njit
    def f(a, b):
        t = (a, b, a + b)
        return t[0] + t[2], len(t)

    return f(3, 4.5)


@in_short_selection
def object_mode():
    @jit(forceobj=True)
    def f(a):
        s = 0
        for x in a:
            s += len(str(x))
        return s

    return f([1, 22, 333])


@register
def lifted_loop():
    @jit(forceobj=True, looplift=True)
    def f(n):
        names = [str(i) for i in (1, 2)]
        s = 0
        for i in range(n):
            s += i * 3
        return s, names

    return f(10)


@in_short_selection
def with_objmode():
    @njit
    def f(x):
        y = x * 2
        with objmode(z="float64"):
            z = float(str(y))
        return z + 1

    return f(2.5)


@register
def overloaded():
    def double_it(x):
        return x * 2

    @overload(double_it)
    def _double_it(x):
        if isinstance(x, types.Integer):

            def for_integer(x):
                return x * 2

            return for_integer

        def for_real(x):
            return x + x + 0.0

        return for_real

    @njit
    def f(x):
        return double_it(x)

    return f(2), f(2.5)


@in_short_selection
def overloaded_inline():
    def triple(x):
        return x * 3

    @overload(triple, inline="always")
    def _triple(x):
        def impl(x):
            y = x * 2
            return y + x

        return impl

    @njit
    def f(a):
        s = 0.0
        for x in a:
            s += triple(x)
        return s

    return f(REALS)


@register
def registered():
    @register_jitable
    def g(x):
        return x + 5

    @njit
    def f(x):
        return g(x)

    return f(1)


@in_short_selection
def closure():
    def make(k):
        @njit
        def f(x):
            return x * k

        return f

    return make(2)(3), make(2.5)(3)


@register
def inner_function():
    @njit
    def f(x):
        def g(y):
            return y + x

        return g(1) + g(2)

    return f(3)


@in_short_selection
def lambdas():
    f = njit(lambda x: x * 2 + 1)
    g = njit(lambda a: f(a) + 1)
    return g(3)


@register
def first_class_function():
    @njit(int64(int64))
    def a(x):
        return x + 1

    @njit(int64(int64))
    def b(x):
        return x * 2

    @njit
    def f(functions, x):
        for g in functions:
            x = g(x)
        return x

    return f((a, b), 5)


@in_short_selection
def recursion():
    @njit
    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    return fib(10)


@register
def mutual_recursion():
    return other_file.even(10)


@in_short_selection
def unrolled():
    @njit
    def f(t):
        s = 0.0
        for x in literal_unroll(t):
            s += x * 2
        return s

    return f((1, 2.5, 3))


@in_short_selection
def several_signatures():
    @njit
    def f(x):
        return x + x

    return f(1), f(1.5), f(1j), f(REALS).sum(), f(np.float32(2))


@register
def eager_signatures():
    @njit(["int64(int64)", "float64(float64)"])
    def f(x):
        return x * x

    return f(3), f(1.5)


@in_short_selection
def made_by_exec():
    names = {"njit": njit}
    exec("@njit\ndef f(x):\n    y = x + 1\n    return y * 2\n", names)
    return names["f"](4)


@register
def made_by_exec_named():
    names = {}
    exec(compile("def f(x):\n    return x - 1\n", "made up.py", "exec"), names)
    return njit(names["f"])(4)


@in_short_selection
def exceptions():
    @njit
    def f(x):
        if x < 0:
            raise ValueError("negative", x)
        return math.sqrt(x)

    try:
        f(-1.0)
    except ValueError as error:
        return f(4.0), error.args[0]


@register
def caught_exceptions():
    @njit
    def g(x):
        if x == 3:
            raise ValueError
        return x

    @njit
    def f(n):
        s = 0
        for i in range(n):
            try:
                s += g(i)
            except Exception:
                s += 100
        return s

    return f(6)


@register
def asserts():
    @njit
    def f(x):
        assert x > 0, "positive"
        return x

    return f(2)


@register
def strings():
    @njit
    def f(s, n):
        t = ""
        for i in range(n):
            t += s.upper() + str(i)
        return t, t.find("B1"), len(t.split("A"))

    return f("ab", 3)


@register
def random_numbers():
    @njit
    def f(n):
        np.random.seed(1)
        s = 0.0
        for i in range(n):
            s += np.random.normal(0, 1) + np.random.randint(0, 5)
        return s

    return round(f(20), 6)


@register
def sorting():
    @njit
    def f(a):
        return np.argsort(a)[0], np.sort(a)[0], np.median(a)

    return f(REALS[::-1].copy())


@register
def linear_algebra():
    @njit
    def f(a):
        b = a.copy()
        for i in range(b.shape[0]):
            for j in range(b.shape[1]):
                b[i, j] += 1.0
        return b.T[0].sum()

    return f(SQUARE)


@register
def matrix_product():
    @njit
    def f(a, b):
        out = np.zeros((a.shape[0], b.shape[1]))
        for i in range(a.shape[0]):
            for j in range(b.shape[1]):
                for k in range(a.shape[1]):
                    out[i, j] += a[i, k] * b[k, j]
        return out

    return f(SQUARE, SQUARE).sum()


@register
def structured():
    kind = np.dtype([("x", np.float64), ("n", np.int64)])

    @njit
    def f(a):
        s = 0.0
        for r in a:
            s += r.x * r.n
        return s

    a = np.zeros(4, kind)
    a["x"], a["n"] = 1.5, 2
    return f(a)


@register
def optional_values():
    @njit
    def f(x):
        y = None
        if x > 1:
            y = x * 2
        return y

    return f(2), f(0)


@register
def complex_numbers():
    @njit
    def f(n):
        z, c = 0j, 0.3 + 0.5j
        for i in range(n):
            z = z * z + c
        return abs(z)

    return round(f(10), 6)


@register
def while_and_break():
    @njit
    def f(n):
        i = s = 0
        while True:
            i += 1
            if i % 3 == 0:
                continue
            if i > n:
                break
            s += i
        return s

    return f(20)


@register
def printing():
    @njit
    def f(x):
        if x > 100:
            print("large", x)
        return x

    return f(3)


@register
def enumerate_and_zip():
    @njit
    def f(a, b):
        s = 0.0
        for i, (x, y) in enumerate(zip(a, b)):
            s += i * x + y
        return s

    return f(REALS, REALS)


@register
def fancy_index():
    @njit
    def f(a, i):
        return a[i].sum() + a[a > 3].sum()

    return f(REALS, INTEGERS[:5])


@register
def constants():
    table = np.arange(5.0)

    @njit
    def f(i):
        return table[i] + (1, 2, 3)[i % 3]

    return f(2)


@register
def decorated_over_lines():
    @njit(
        nogil=True,
        fastmath=False,
    )
    def f(
        x,
        y=2,
    ):
        # a comment
        z = (
            x
            + y
        )
        return z

    return f(1)


@register
def several_lines_one_statement():
    @njit
    def f(a, b, c): return a + b + c

    return f(1, 2, 3)
