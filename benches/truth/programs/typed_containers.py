"""Typed lists and dictionaries."""
from numba import njit, typed, types

from phases import phase, run


@njit
def fill_list(n):
    values = typed.List()
    for i in range(20 * n):  # appended
        values.append(i * 0.5)  # appended
    return len(values)


@njit
def fill_dict(n):
    d = typed.Dict.empty(types.int64, types.float64)
    for i in range(20 * n):  # stored
        d[i % 500] = i * 0.5  # stored
    return len(d)


@njit
def look_up(d, n):
    s = 0.0
    for i in range(20 * n):  # found
        s += d[i % 100]  # found
    return s


D = typed.Dict.empty(types.int64, types.float64)
for _i in range(100):
    D[_i] = _i


@phase("appended")
def _(n):
    fill_list(n)


@phase("stored")
def _(n):
    fill_dict(n)


@phase("found")
def _(n):
    look_up(D, n)


run()
