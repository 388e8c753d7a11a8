"""Programs that Numba or LLVM refuses, that raise, and that print what Numba thinks of them.

    python messages.py [lines]      with lines, the output is the same

Each says what kind of exception came, its text, and the exceptions before it.
"""

import os
import sys
import tempfile
import traceback

if sys.argv[1:] == ["lines"]:
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir))
    import jitlisten._lines as lines

    lines.install()

import numba
import numpy as np
from llvmlite import ir
from numba import cfunc, guvectorize, int64, njit, objmode, prange, stencil, types, vectorize
from numba.core import datamodel
from numba.core.typeconv import Conversion
from numba.extending import intrinsic, overload, register_model

if sys.argv[1:] == ["lines"]:
    assert lines.status()["active"], lines.status()


def shown(program):
    """Runs a program; each is one test."""
    print("---", program.__name__)
    try:
        print(program())
    except Exception as error:
        while error is not None:
            print(type(error).__module__, type(error).__name__, len(error.args), error)
            frames = traceback.extract_tb(error.__traceback__)
            print([frame.name for frame in frames if "jitlisten" not in frame.filename])
            error = error.__context__
    sys.stdout.flush()


def codegen(signature, body):
    """A function that writes LLVM's code with `body(builder, arguments)`."""
    return intrinsic(lambda context, x: (signature, lambda context, builder, signature, args: body(builder, args)))


WHOLE = types.int64(types.int64)


def too_early(builder, args):
    value = builder.add(args[0], args[0])
    first = builder.function.entry_basic_block
    with builder.goto_block(first):
        builder.position_at_start(first)
        builder.add(value, value)
    return value


def raises(builder, args):
    value = builder.mul(builder.add(args[0], args[0]), args[0])
    raise NotImplementedError("%s | %s | %s" % (value, builder.block, str(builder.function).splitlines()[0]))


def without_location(builder, args):
    """A call that makes Numba's own debug information invalid."""
    kept, builder.debug_metadata = builder.debug_metadata, None
    with builder.if_then(ir.Constant(ir.IntType(1), 0)):
        builder.call(builder.function, builder.function.args)
    builder.debug_metadata = kept
    return args[0]


invalid = codegen(WHOLE, too_early)
unreadable = codegen(WHOLE, lambda builder, args: ir.Constant(ir.IntType(64), "nonsense"))
failing = codegen(WHOLE, raises)
calling = codegen(WHOLE, without_location)


@shown
def two_blocks_of_object_mode():
    @njit
    def f(a, nb, nc):
        s = 0.0
        for i in range(nb):
            with objmode(y="float64"):
                y = 1.5
            s += y
        for i in range(nc):
            with objmode(z="float64[:]"):
                z = a.copy()
            s += z[0]
        return s

    return f(np.ones(3), 1, 1)


@shown
def refused():
    return njit(lambda x: invalid(x))(3)


@shown
def refused_below():
    inner = njit(lambda x: invalid(x))
    return njit(lambda x: inner(x) + 1)(3)


@shown
def refused_in_a_kernel():
    @njit(parallel=True)
    def f(n):
        s = 0
        for i in prange(n):
            s += invalid(i)
        return s

    return f(3)


@shown
def refused_in_a_gufunc():
    @guvectorize([(int64[:], int64[:])], "(n)->(n)")
    def g(a, b):
        for i in range(a.shape[0]):
            b[i] = invalid(a[i])

    return g(np.arange(3))


@shown
def refused_in_a_ufunc():
    return vectorize([WHOLE])(lambda x: invalid(x))(np.arange(3))


@shown
def refused_in_a_callback():
    return cfunc(WHOLE)(lambda x: invalid(x))


@shown
def not_read():
    return njit(lambda x: unreadable(x))(3)


@shown
def values_in_a_message():
    @njit
    def f(x):
        y = x * 2
        return failing(y)

    return f(3)


@shown
def values_in_a_message_of_a_kernel():
    @njit(parallel=True)
    def f(n):
        s = 0
        for i in prange(n):
            s += failing(i)
        return s

    return f(3)


@shown
def invalid_debug_information_of_numbas():
    """LLVM says so on stderr, and goes on without."""

    @njit(debug=True)
    def f(x):
        return calling(x)

    return f(3)


class Kind(types.Type):
    def __init__(self, number):
        super().__init__("Kind%d" % number)

    def can_convert_to(self, context, other):
        return Conversion.safe if isinstance(other, Kind) else None

    def unify(self, context, other):
        return Kind(9) if isinstance(other, Kind) else None


@register_model(Kind)
class KindModel(datamodel.models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, ir.IntType(64))


@shown
def a_copy_where_branches_join():
    first = codegen(Kind(1)(types.int64), lambda builder, args: builder.add(args[0], args[0]))
    second = codegen(Kind(2)(types.int64), lambda builder, args: builder.mul(args[0], args[0]))
    use = intrinsic(lambda context, x: (types.int64(x), lambda context, builder, signature, args: args[0]))

    @njit
    def f(c, x):
        if c > 1:
            y = first(x)
            if c > 10:
                x = 3
        else:
            y = second(x)
        return use(y) + x

    return f(1, 2)


@shown
def inlined():
    @njit(inline="always")
    def inner(x):
        z = x
        return failing(z)

    return njit(lambda x: inner(x) + inner(x + 1))(3)


@shown
def inlined_and_not_typed():
    @njit(inline="always")
    def inner(x, c):
        if c:
            y = x
        else:
            y = "a"
        return y + 1

    return njit(lambda x: inner(x, x > 2))(3)


@shown
def a_stencil_that_is_not_typed():
    kernel = stencil(lambda a: a[0, 1] + a[1, 0] + "x")
    return njit(lambda a: kernel(a))(np.ones((4, 4)))


@shown
def what_numba_says_of_a_stencil():
    @stencil
    def kernel(a):
        return a[0, 1] + a[1, 0]

    @njit(parallel=True)
    def f(a):
        b = a + 1
        c = kernel(b)
        for i in prange(a.shape[0]):
            c[i, 0] = 2
        return c + a.sum()

    f(np.ones((4, 4)))
    f.parallel_diagnostics(level=4)
    f.inspect_types()


@shown
def not_typed():
    @njit
    def f(x):
        y = x + "a"
        return y.foo

    return f(3)


@shown
def an_overload_that_is_not_typed():
    @overload(len)
    def of_number(x):
        if isinstance(x, types.Integer):
            return lambda x: x.nothing

    return njit(lambda x: len(x))(3)


@shown
def raised():
    @njit
    def f(x):
        if x > 3:
            raise ValueError("large", x)
        return x

    return f(4)


@shown
def out_of_bounds():
    return njit(boundscheck=True)(lambda a, i: a[i])(np.ones(3), 7)


@shown
def dumped():
    numba.config.DUMP_LLVM = True
    try:
        return njit(lambda x: x + 1)(3)
    finally:
        numba.config.DUMP_LLVM = False


CACHED = "from numba import njit\n@njit(cache=True)\ndef f(x):\n    return x + 1\n"


@shown
def a_damaged_cache():
    with tempfile.TemporaryDirectory() as directory:
        numba.config.CACHE_DIR = os.path.join(directory, "cache")
        with open(os.path.join(directory, "cached.py"), "w") as file:
            file.write(CACHED)
        found = []
        halved = lambda data: data[: len(data) // 2]
        for damage in (None, lambda data: data, halved, lambda data: b"", lambda data: b"x"):
            for suffix in (".nbi", ".nbc"):
                for place, _, names in os.walk(numba.config.CACHE_DIR) if damage else ():
                    for path in (os.path.join(place, name) for name in names if name.endswith(suffix)):
                        with open(path, "rb+") as file:
                            data = damage(file.read())
                            file.seek(0)
                            file.truncate()
                            file.write(data)
                space = {"__name__": "cached", "__file__": os.path.join(directory, "cached.py")}
                exec(compile(CACHED, space["__file__"], "exec"), space)
                try:
                    found.append((space["f"](3), list(space["f"].stats.cache_hits.values())))
                except Exception as error:
                    found.append((type(error).__name__, str(error)))
        return found
