"""Writes a module of random functions for Numba:  generate.py SEED COUNT > MODULE

The functions use every kind of control flow that Numba compiles. Values are small integers, so that compiled and
interpreted results are equal. `drive` calls each function several times and prints the results, or "refused" for a
function that Numba does not compile. With GENERATED_ONLY, it calls only the functions named there.
"""

import io
import random
import sys
import tokenize

HEADER = """
import os
import traceback
import numba
import numba.experimental
import numba.extending
import numpy as np
from numba import jit, literal_unroll, njit, objmode, prange
from numba.core.errors import NumbaError

# NUMBA_DISABLE_JIT does not apply to these.
if numba.config.DISABLE_JIT:

    def vectorize(function):
        return function

    def guvectorize(function):
        def call(a, b):
            out = np.zeros(1, np.int64)
            function(a, b, out)
            return out[0]

        return call

    class Neighbours:
        def __init__(self, array, index):
            self.array, self.index = array, index

        def __getitem__(self, offset):
            return self.array[self.index + offset]

    def stencil(function):
        def call(a, b):
            array = [1, a, b, a + b]
            return [function(Neighbours(array, index)) for index in (1, 2)]

        return call

    def overloaded(**options):
        return lambda choose: choose(None, None)

    def method(function):
        return lambda a, b: function(None, a, b)

else:
    vectorize = numba.vectorize

    def guvectorize(function):
        return compiled_later(lambda: numba.guvectorize(["void(int64, int64, int64[:])"], "(),()->()")(function))

    def stencil(function):
        compiled = compiled_later(lambda: numba.stencil(function))
        return lambda a, b: compiled(np.array([1, a, b, a + b]))[1:3].tolist()

    def compiled_later(compile):
        # Numba compiles these when they are defined, and may refuse them.
        compiled = []

        def call(*arguments):
            if not compiled:
                compiled.append(compile())
            return compiled[0](*arguments)

        return call

    def overloaded(**options):
        def decorate(choose):
            def target(a, b):
                raise NotImplementedError

            numba.extending.overload(target, **options)(choose)
            return njit(lambda a, b: target(a, b))

        return decorate

    def method(function):
        class Box:
            def __init__(self):
                self.value = 1

            run = function

        Box = numba.experimental.jitclass([("value", numba.int64)])(Box)
        return lambda a, b: Box().run(a, b)


ON = 1
OFF = False
NOTHING = None

"""

DRIVER = """
refused = set()


def call(name, *arguments):
    # Numba would compile a refused function again.
    if name in refused or name not in os.environ.get("GENERATED_ONLY", name).split():
        return
    function = globals()[name]
    try:
        result = function(*arguments)
        if hasattr(result, "__next__"):
            result = list(result)
    except Exception as error:
        # Numba also fails with exceptions that the function could raise, for a lifted loop when that is called.
        raised_by = traceback.extract_tb(error.__traceback__)[-1].filename
        is_refused = isinstance(error, NumbaError) or "/numba/core/" in raised_by
        is_refused |= not getattr(function, "signatures", True)
        result = "refused " + str(error)[:200] if is_refused else type(error).__name__
        if is_refused:
            refused.add(name)
    print(name, str(arguments).replace(" ", ""), str(result).replace("\\n", " "), flush=True)


def drive():
"""


DECORATORS = {
    "parallel": "@njit(parallel=True)",
    "inline": "@njit(inline='always')",
    "generator": "@njit",
    "recursive": "@njit",
    "objmode": "@njit",
    "cached": "@njit(cache=True)",
    "optional": "@njit",
    "checked": "@njit(\n    boundscheck=True,\n)",
    "object": "@jit(forceobj=True)",
    "lifted": "@jit(forceobj=True, looplift=True)",
    "vectorize": "@vectorize",
    "guvectorize": "@guvectorize",
    "stencil": "@stencil",
    "overload": "@overloaded()",
    "inline overload": "@overloaded(inline='always')",
    "method": "@method",
}
_PARAMETERS = {
    "optional": "a, b, extra=None",
    "guvectorize": "a, b, result",
    "stencil": "neighbours",
    "method": "self, a, b",
}
# Numba compiles no `try` in these.
_WITHOUT_TRY = ("generator", "object", "lifted", "stencil")
_CALLABLE = ("plain", "inline", "overload", "inline overload")


class Function:
    """Writer of one function."""

    def __init__(self, source, name, callees, generators):
        self.random = random.Random("%s %s" % (source, name))
        # Functions that this one may call, with the depth of the calls in them, and generators.
        self.name, self.callees, self.generators = name, callees, generators
        self.call_depth = 0
        self.lines = []
        # Local functions that are defined wherever the current statement runs.
        self.closures = []
        self.counters = 0
        self.budget = self.random.choice([self.random.randint(3, 12)] * 12 + [40])
        self.kind = self.random.choice(["plain"] * 9 + [*DECORATORS])
        if self.kind in ("inline", "inline overload", "vectorize"):
            self.callees, self.generators = {}, []

    # Expressions

    def atom(self):
        return self.random.choice(["x", "y", "z", "a", "b", str(self.random.randint(-2, 6)), "ON"])

    def divisor(self):
        """Ufuncs, and functions inlined into them, have NumPy's error model: dividing by zero raises nothing."""
        return "3" if self.kind in ("vectorize", "guvectorize", "inline", "inline overload") else self.atom()

    def value(self, depth=0):
        r = self.random
        kind = r.randint(0, 19 if depth < 2 else 5)
        if kind <= 3:
            return self.atom()
        if kind <= 7:
            return "(%s %s %s) %% %d" % (self.atom(), r.choice("+-*"), self.atom(), r.randint(3, 9))
        if kind == 8:
            divisor = r.choice(["", "", " // " + self.divisor()])
            parts = (self.value(depth + 1), self.condition(depth + 1), self.value(depth + 1), divisor)
            return "(%s if %s else %s%s)" % parts
        if kind == 9:
            return "abs(\n        %s\n        - %s)" % (self.atom(), self.value(depth + 1))
        if kind in (10, 16) and self.callees and not self.in_parallel:
            layout = r.choice(["%s(%s, %s)", "%s(\n        %s,\n        %s)"])
            callee = r.choice(list(self.callees))
            self.call_depth = max(self.call_depth, self.callees[callee] + 1)
            return layout % (callee, self.atom(), self.value(2))
        if kind == 11:
            return self.comprehension()
        if kind == 12:
            return "(%s and %s or %s)" % (self.atom(), self.atom(), self.atom())
        if kind == 13 and not self.in_parallel:
            return "(x := %s)" % self.atom()
        if kind == 14:
            return "max(%s,\n        %s)" % (self.atom(), self.value(depth + 1))
        if kind == 15 and not self.in_parallel:
            return "(%s) // %s" % (self.atom(), self.divisor())
        if kind == 17:
            parts = (self.value(depth + 1), self.condition(depth + 1), self.value(depth + 1))
            return "(%s\n        if %s\n        else %s)" % parts
        if kind == 18 and self.kind == "checked" and not self.in_parallel:
            return "int(row[%s])" % self.atom()
        if kind == 18:
            return "int(%s < %s < %s)" % (self.atom(), self.value(2), self.atom())
        if kind == 19 and self.closures and not self.in_parallel:
            return "%s(%s)" % (r.choice(self.closures), self.atom())
        return self.atom()

    def comprehension(self):
        r = self.random
        count = r.choice(["3", "abs(x) % 4"])
        relation = r.choice(["<", ">", "!="])
        forms = [
            "len([k for k in range(%s) if k %s %s])" % (count, relation, self.atom()),
            "len([k if k %s %s else -k\n        for k in range(%s)\n        if k != 1])"
            % (relation, self.atom(), count),
            "len([k + q for k in range(%s) for q in range(k) if q %s %s])" % (count, relation, self.atom()),
            "int(np.array([k * %s for k in range(%s)]).sum())" % (self.atom(), count),
            "int(np.array([\n        k - %s\n        for k in range(%s)\n        ]).sum())" % (self.atom(), count),
            "int(np.array([\n        [k + q for q in range(2)]\n        for k in range(%s)]).sum())" % count,
        ]
        if sys.version_info >= (3, 12) and not self.in_parallel:
            # Before, comprehensions are functions, and Numba supports no assignment to variables of other functions.
            forms += ["len([z for k in range(%s) if (z := k * %s) %s 1])" % (count, self.atom(), relation)] * 2
        return r.choice(forms)

    def condition(self, depth=0):
        r = self.random
        kind = r.randint(0, 19 if depth < 2 else 4)
        if kind <= 4:
            return "%s %s %s" % (self.atom(), r.choice(["<", ">", "==", "!=", "<=", ">="]), self.atom())
        if kind <= 6:
            return "%s and %s" % (self.condition(depth + 1), self.condition(depth + 1))
        if kind <= 8:
            return "%s or %s" % (self.condition(depth + 1), self.condition(depth + 1))
        if kind == 9:
            return "%s < %s <= %s" % (self.atom(), self.atom(), self.atom())
        if kind == 10:
            return "(%s and\n            %s)" % (self.condition(depth + 1), self.condition(depth + 1))
        if kind == 11:
            return "not (%s)" % self.condition(depth + 1)
        if kind == 12:
            return r.choice(["True", "False", "0", "1", "not True", "OFF", "ON == 1", "ON > 1", "not OFF"])
        if kind == 13:
            return r.choice(["isinstance(x, int)", "isinstance(y, float)", "NOTHING is None", "NOTHING is not None"])
        if kind == 14:
            return "(\n        %s\n        %s %s\n    )" % (self.atom(), r.choice(["<", ">"]), self.atom())
        if kind == 15 and not self.in_parallel:
            # Numba infers no type if the assigned value is computed.
            return r.choice(["(y := %s)", "(y := %s) and a > 1", "(y := %s) or b", "(y := %s) > 1"]) % r.choice("xyzab")
        if kind == 16:
            return r.choice(["c0 > 1", "c0 == 0", "c0", "not c0"])
        if kind == 17 and self.kind == "optional":
            return r.choice(["extra is None", "extra is not None"])
        if kind == 18:
            return "%s %s (%s,\n        %s)" % (self.atom(), r.choice(["in", "not in"]), self.atom(), self.atom())
        if kind == 19:
            return "(%s < %s\n        < %s)" % (self.atom(), self.value(2), self.atom())
        return self.atom()

    # Statements

    def write(self, depth, text):
        self.lines.append("    " * depth + text)

    def block(self, depth, **context):
        saved, closures = self.context, self.closures[:]
        self.context = dict(saved, **context)
        for _ in range(self.random.choice([1, 1, 2, 2, 3])):
            self.statement(depth)
            if self.lines[-1].strip().split(" ")[0] in ("return", "break", "continue", "raise"):
                break
        self.context, self.closures = saved, closures

    def suite(self, depth, header, **context):
        """Writes a compound statement: its header, and a block or a simple statement on the same line."""
        if self.random.random() < 0.12 and not context.get("prefix"):
            saved, self.context = self.context, dict(self.context, **context)
            self.write(depth, "%s %s" % (header, "; ".join(self.short_suite())))
            self.context = saved
            return
        self.write(depth, header)
        prefix = context.pop("prefix", None)
        if prefix:
            self.write(depth + 1, prefix)
        self.block(depth + 1, **context)

    def short_suite(self):
        """Returns simple statements that can be on one line."""
        statements = [self.simple() for _ in range(self.random.choice([0, 1, 1, 2]))]
        jumps = []
        if not self.context["try"]:
            jumps += ["break", "continue"] if self.context["loop"] else []
            jumps += ["return"] if not self.context["loop_only"] and self.kind == "generator" else []
            if not self.context["loop_only"] and self.returns:
                jumps += [self.return_of(self.atom())]
        if jumps and self.random.random() < 0.5:
            statements.append(self.random.choice(jumps))
        return statements or [self.simple()]

    def simple(self):
        r = self.random
        target = r.choice("xyz") if not self.in_parallel else "x"
        return r.choice(
            [
                "%s = %s" % (target, self.value(1)),
                "%s += %s" % (target, self.atom()),
                "%s = %s" % (target, self.atom()),
                "pass",
            ]
        ).replace("\n", "")

    @property
    def in_parallel(self):
        return self.context.get("parallel", False)

    def fresh(self, prefix):
        self.counters += 1
        return "%s%d" % (prefix, self.counters)

    def statement(self, depth):
        r, context = self.random, self.context
        self.budget -= 1
        if self.budget < 0 or depth > 6:
            self.write(depth, self.simple())
            return
        kinds = ["simple"] * 4 + ["if"] * 6 + ["for"] * 4 + ["while"] * 3 + ["pass", "assert", "swap", "two", "match"]
        kinds += ["expression", "array"]
        if not (context["loop_only"] or context["loop"] or self.in_parallel or self.kind in ("object", "lifted")):
            kinds += ["unroll"]
        if context["loop"]:
            kinds += ["break"] * 3 + (["continue"] * 3)
        if not context["loop_only"]:
            kinds += ["return"] * (0 if self.kind == "stencil" else 2) + ["try"] * 3 + ["raise"] + ["closure"]
            if self.kind == "objmode" and not context["try"]:
                kinds += ["objmode"] * 4
        if self.kind == "generator" and not context["loop_only"] and not context["try"]:
            kinds += ["yield"] * 5
        if self.kind == "parallel" and not context["loop_only"] and not context["try"]:
            kinds += ["prange"] * 5 + ["reduction"] * 3
        if context["try"]:
            # Numba loses exceptions after a jump out of `try`.
            kinds = [kind for kind in kinds if kind not in ("break", "continue", "return")] + ["raise"] * 3
        if self.in_parallel:
            kinds = [kind for kind in kinds if kind not in ("assert", "swap", "array")]
        if self.kind == "stencil":
            # Numba may not end when it compiles a swap.
            kinds = [kind for kind in kinds if kind != "swap"]
        getattr(self, "write_" + r.choice(kinds))(depth)

    def write_simple(self, depth):
        target = self.random.choice("xyz") if not self.in_parallel else "x"
        self.write(depth, "%s %s %s" % (target, self.random.choice(["=", "=", "+="]), self.value()))
        self.write(depth, "%s %%= 11" % target) if self.random.random() < 0.2 else None

    def write_pass(self, depth):
        self.write(depth, "pass")

    def write_assert(self, depth):
        self.write(depth, "assert %s%s" % (self.condition(1), self.random.choice([", 'text'", ""])))

    def write_swap(self, depth):
        self.write(depth, self.random.choice(["x, y = y, x", "(x,\n    y) = (y,\n    x)", "x = y = z"]))

    def write_expression(self, depth):
        self.write(depth, self.random.choice(["x", "x + y", "'text'", "...", "x: int = y", "(x\n        + y)"]))

    def write_array(self, depth):
        if self.kind == "parallel":
            whole_arrays = ["out[:] = out * 2 + out", "out = np.where(out > x, out, 1)", "out += y"]
            self.write(depth, self.random.choice(whole_arrays))
            self.write(depth, "x = int(out.sum()) % 7")
            return
        self.write(depth, "row[%s] %s %s" % (self.random.choice("012"), self.random.choice(["=", "+="]), self.value()))
        self.write(depth, "x = int(row[0]) % 7")

    def write_unroll(self, depth):
        # Numba supports little in such a loop.
        name = self.fresh("u")
        self.write(depth, "for %s in literal_unroll((1, 2.5, %s)):" % (name, self.random.choice(["a", "3"])))
        self.write(depth + 1, "if %s > %s:" % (name, self.random.choice(["1", "2", "a"])))
        self.write(depth + 2, self.random.choice(["x += 1", "pass", "y = 2"]))
        if self.random.random() < 0.5:
            self.write(depth + 1, "elif %s:" % self.random.choice(["a > 2", "a and b", "not b"]))
            self.write(depth + 2, "y += 1")
        self.write(depth + 1, "x += 1")

    def write_two(self, depth):
        self.write(depth, "%s; %s" % (self.simple(), self.simple()))

    def write_if(self, depth):
        self.suite(depth, "if %s:" % self.condition())
        while self.random.random() < 0.3:
            self.suite(depth, "elif %s:" % self.condition())
        if self.random.random() < 0.45:
            self.suite(depth, "else:")

    def write_match(self, depth):
        if not self.has_match:
            self.write_if(depth)
            return
        self.write(depth, "match %s:" % self.random.choice(["x", "y", "x % 3"]))
        for _ in range(self.random.randint(1, 3)):
            pattern = self.random.choice(["0", "1", "2", "1 | 3", "-1", "(0 | 2) as x"])
            guard = " if %s" % self.condition(1).replace("\n", " ") if self.random.random() < 0.25 else ""
            self.suite(depth + 1, "case %s%s:" % (pattern, guard))
        if self.random.random() < 0.5:
            self.suite(depth + 1, "case _:")

    def write_for(self, depth):
        name = self.fresh("i")
        count = self.random.choice(["2", "3", "0", "1", "abs(x) % 4", "abs(y) % 3", "a"])
        iterable = "range(%s)" % count
        if self.random.random() < 0.3 and not self.in_parallel:
            iterable = self.random.choice(
                ["(a, b)", "(x, y,\n        z)", "[x, 2]", "row", "range(3, %s, -1)" % count, "row[:%s]" % count]
            )
        # Numba may lose an exception of a generator in a `try`.
        if self.generators and not (self.in_parallel or self.context["try"]) and self.random.random() < 0.2:
            iterable = "%s(%s, %s)" % (self.random.choice(self.generators), self.atom(), self.atom())
        target = name
        if self.random.random() < 0.15:
            other = self.fresh("j")
            target = "%s, %s" % (name, other)
            iterable = self.random.choice(["enumerate(%s)" % iterable, "zip(%s, range(3))" % iterable])
        self.suite(depth, "for %s in %s:" % (target, iterable), loop=True)
        if self.random.random() < 0.3:
            self.suite(depth, "else:")
        if count in "123" and "row" not in iterable and self.random.random() < 0.3 and not self.in_parallel:
            self.write(depth, "x += %s" % name)

    def write_while(self, depth):
        if self.kind == "stencil":
            # Numba compiles some of these to loops that never end.
            self.write_if(depth)
            return
        name = self.fresh("w")
        self.write(depth, "%s = 0" % name)
        limit = self.random.randint(0, 4)
        conditions = [
            "%s < %d" % (name, limit),
            "%s < %d" % (name, limit),
            "%s < %d and (%s)" % (name, limit, self.condition(1)),
            "(%s < %d and\n        (%s))" % (name, limit, self.condition(1)),
            "True",
            "True",
            "1",
        ]
        # For Python 3.9, coverage.py cannot analyse some of these.
        if sys.version_info >= (3, 10):
            conditions += ["False", "not True"]
        condition = self.random.choice(conditions)
        if condition in ("True", "1"):
            step = "%s += 1\n%sif %s > %d:\n%sbreak" % (name, "    " * (depth + 1), name, limit, "    " * (depth + 2))
        else:
            step = "%s += 1" % name
        self.suite(depth, "while %s:" % condition, loop=True, prefix=step)
        if self.random.random() < 0.25:
            self.suite(depth, "else:")

    def write_break(self, depth):
        self.write(depth, "break")

    def write_continue(self, depth):
        self.write(depth, "continue")

    def write_return(self, depth):
        self.write(depth, "return" if self.kind == "generator" else self.return_of(self.value()))

    @property
    def returns(self):
        return self.kind not in ("generator", "stencil")

    def return_of(self, value):
        return "result[0] = %s; return" % value if self.kind == "guvectorize" else "return %s" % value

    def write_raise(self, depth):
        self.write(depth, self.random.choice(["raise ValueError", "raise ValueError('text')", "raise IndexError(1)"]))

    def write_try(self, depth):
        if self.kind in _WITHOUT_TRY or (self.context["try"] and self.random.random() < 0.7):
            self.write_if(depth)
            return
        self.write(depth, "try:")
        self.block(depth + 1, **{"try": True, "loop": False})
        # Numba supports either `except` or `finally`.
        if self.random.random() < 0.8:
            self.suite(depth, self.random.choice(["except Exception:", "except:"]))
            if self.random.random() < 0.3:
                self.suite(depth, "else:")
        else:
            self.write(depth, "finally:")
            self.block(depth + 1, loop_only=True, loop=False)

    def write_closure(self, depth):
        name, raises = self.fresh("inner"), False
        if self.random.random() < 0.4:
            self.write(
                depth,
                "%s = lambda q: q + 1 if q > %s else %s" % (name, self.random.choice("ab2"), self.random.choice("ab2")),
            )
        else:
            self.write(depth, "def %s(q):" % name)
            if self.random.random() < 0.4:
                self.write(depth + 1, "for r in range(q %% %d):" % self.random.randint(1, 3))
                self.write(depth + 2, "q += %s" % self.random.choice(["r", "a"]))
                if self.random.random() < 0.5:
                    self.write(depth + 1, "else:")
                    self.write(depth + 2, "q -= 1")
            self.write(depth + 1, "if q > %d:" % self.random.randint(-2, 4))
            # In a `try`, Numba does not run the handler of an exception of an inlined function.
            raises = not self.context["try"] and self.random.random() < 0.15
            jump = self.random.choice(["return q - 1"] * 3 + ["q = 0"] * 2)
            self.write(depth + 2, "raise ValueError" if raises else jump)
            self.write(depth + 1, self.random.choice(["return q", "return q", "return (q\n            + 1)"]))
        for _ in range(self.random.choice([1, 1, 1, 2, 0])):
            self.write(depth, "x = %s(%s)" % (name, self.atom()))
        if not raises:
            self.closures.append(name)

    def write_objmode(self, depth):
        self.write(depth, "with objmode(x='int64', y='int64', z='int64'):")
        self.block(depth + 1, loop=False, loop_only=True)
        divisor = self.random.choice(["1", "1", "a", "(a - b)"])
        self.write(depth + 1, "x, y, z = int(x), int(y) // %s, int(z)" % divisor)

    def write_yield(self, depth):
        self.write(depth, "yield %s" % self.atom())

    def write_prange(self, depth):
        name = self.fresh("p")
        self.write(depth, "for %s in prange(%s):" % (name, self.random.choice(["3", "abs(a) % 4", "4"])))
        self.write(depth + 1, "x = %s + %s" % (name, self.random.choice(["a", "b", "1"])))
        self.block(depth + 1, parallel=True, loop_only=True, loop=False)
        if self.random.random() < 0.3:
            inner = self.fresh("p")
            header = "for %s in prange(%s):" % (inner, self.random.choice(["2", "abs(b) % 3", name]))
            self.suite(depth + 1, header, parallel=True, loop_only=True, loop=False)
        self.write(depth + 1, "out[%s] = x" % name)
        # `x` is private to each iteration.
        self.write(depth, "x = int(out[0]) % 5")

    def write_reduction(self, depth):
        name, total = self.fresh("p"), self.fresh("total")
        self.write(depth, "%s = 0" % total)
        self.write(depth, "for %s in prange(%s):" % (name, self.random.choice(["3", "abs(a) % 4", "5"])))
        self.write(depth + 1, "if %s %s %s:" % (name, self.random.choice(["<", ">", "=="]), self.random.choice("a12")))
        self.write(depth + 2, self.random.choice(["%s += %s" % (total, name), "%s += 1" % total, "continue"]))
        if self.random.random() < 0.4:
            self.write(depth + 1, "else:")
            self.write(depth + 2, "%s += 2" % total)
        self.write(depth + 1, "%s += %s" % (total, name))
        self.write(depth, "x = %s %% 5" % total)

    def text(self):
        self.context = {"loop": False, "loop_only": False, "try": False, "parallel": False}
        self.has_match = sys.version_info >= (3, 10)
        self.write(0, DECORATORS.get(self.kind, "@njit"))
        self.write(0, "def %s(%s):" % (self.name, _PARAMETERS.get(self.kind, "a, b")))
        if self.random.random() < 0.2:
            self.write(1, '"""A docstring."""')
        if self.kind == "stencil":
            self.write(1, "a = neighbours[-1]")
            self.write(1, "b = neighbours[1]")
        for line in ("x = a", "y = b", "z = %d" % self.random.randint(0, 3), "c0 = 0"):
            self.write(1, line)
        if self.kind == "parallel":
            self.write(1, "out = np.zeros(8, np.int64)")
        if self.kind == "generator":
            self.write(1, "yield x")
        if self.kind == "recursive":
            self.write(1, "if a < 0: return y")
            self.write(1, "y = %s(a - 3, x)" % self.name)
        start = len(self.lines)
        while self.budget > 0:
            self.statement(1)
            # Numba refuses many functions with code that cannot be reached.
            if self.lines[-1].startswith(("    return", "    result", "    raise")) and self.random.random() < 0.8:
                break
        if any("row" in line for line in self.lines[start:]):
            self.lines.insert(start, "    row = np.arange(3)")
        if self.kind != "generator":
            if self.random.random() < 0.9 or not self.returns:
                self.write(1, self.return_of("x + y * 3 + z"))
            else:
                self.write(1, "if y > 2:")
                self.write(2, self.return_of("x"))
                self.write(1, self.return_of(self.atom()))
        text = "\n".join(self.lines)
        if "overload" in self.kind:
            decorator, body = text.split("\n", 1)
            body = body.replace("def %s" % self.name, "def implementation")
            body = "\n".join("    " + line for line in body.split("\n"))
            text = "%s\ndef %s(a, b):\n%s\n\n    return implementation" % (decorator, self.name, body)
        return text + "\n\n\n"


def break_lines(text, chosen, rate):
    """Breaks lines between tokens."""
    lines, breaks, depth, last = text.splitlines(True), [], 0, ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        row, column = token.start
        is_code = token.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)
        is_inside = is_code and last not in ("@", "def") and lines[row - 1][:column].strip()
        if is_inside and chosen.random() < rate:
            breaks.append((row, column, "\n        " if depth else "\\\n        "))
        depth += (token.string in ("(", "[", "{")) - (token.string in (")", "]", "}"))
        last = token.string
    for row, column, text in reversed(breaks):
        lines[row - 1] = lines[row - 1][:column] + text + lines[row - 1][column:]
    return "".join(lines)


def generate(seed, count):
    parts, callees, generators, calls = [HEADER], {}, [], []
    chosen = random.Random(seed)
    for number in range(count):
        function = Function(seed, "f%d" % number, dict([*callees.items()][-3:]), generators[-1:])
        rate = chosen.choice([0, 0, 0.05, 0.1, 0.3])
        parts.append(break_lines(function.text(), function.random, rate))
        for _ in range(chosen.choice([1, 2, 2, 3])):
            arguments = [chosen.randint(-2, 5) for _ in range(chosen.choice([2, 3]))]
            arguments = arguments if function.kind == "optional" else arguments[:2]
            calls.append("    call(%s)\n" % ", ".join(map(repr, [function.name, *arguments])))
        if function.kind in _CALLABLE and function.call_depth < 2:
            callees[function.name] = function.call_depth
        if function.kind == "generator":
            generators.append(function.name)
    return "".join(parts + [DRIVER] + calls)


if __name__ == "__main__":
    sys.stdout.write(generate(int(sys.argv[1]), int(sys.argv[2])))
