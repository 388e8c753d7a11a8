"""Numba's decorators. If COVERAGE_TRUTH is set, these are replacements that leave the functions to the interpreter."""

import os

import numpy as np

TRUTH = bool(os.environ.get("COVERAGE_TRUTH"))

if TRUTH:

    def njit(*arguments, **options):
        return arguments[0] if arguments and callable(arguments[0]) else lambda function: function

    jit = cfunc_of = jitclass = njit
    prange = range
    literal_unroll = tuple

    def vectorize(*arguments, **options):
        if arguments and callable(arguments[0]):
            return np.vectorize(arguments[0], otypes=[float])
        return lambda function: np.vectorize(function, otypes=[float])

    def guvectorize(*arguments, **options):
        def decorate(function):
            def call(x, n):
                out = np.zeros_like(x)
                function(x, n, out)
                return out

            return call

        return decorate

    class _Neighbours:
        def __init__(self, array, index):
            self.array, self.index = array, index

        def __getitem__(self, offset):
            return self.array[self.index + offset]

    def stencil(function):
        def call(array):
            out = np.zeros_like(array)
            for index in range(1, len(array) - 1):
                out[index] = function(_Neighbours(array, index))
            return out

        return call

    _implementations = {}

    def overload(target, **options):
        def decorate(function):
            _implementations[target.__name__] = function
            return function

        return decorate

    def chosen(x, y):
        return _implementations["chosen"](x, y)(x, y)

    def fails(x):
        return _implementations["fails"](x)(x)

    class objmode:
        def __init__(self, **options):
            pass

        def __enter__(self):
            pass

        def __exit__(self, *exception_info):
            return False

    def address_of(function):
        return function

    float64 = int64 = None
else:
    import ctypes

    from numba import cfunc, float64, guvectorize, int64, jit, literal_unroll, njit, objmode, prange, stencil, vectorize
    from numba.experimental import jitclass
    from numba.extending import overload

    def cfunc_of(signature):
        return cfunc(signature)

    def address_of(function):
        return ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(function.address)

    def chosen(x, y):
        raise NotImplementedError

    def fails(x):
        raise NotImplementedError


def is_float(value):
    """True for Numba's float type, as overloads see it, and for float values in Python."""
    return value is float64 if not TRUTH else isinstance(value, float)
