"""A sparse matrix by rows: its product with a vector, a sum over columns, and a dictionary of its rows in Python."""
import collections

import numpy as np
from numba import njit

from phases import phase, run

random_source = np.random.default_rng(0)
LENGTHS = random_source.integers(0, 40, 2000)
STARTS = np.concatenate([[0], np.cumsum(LENGTHS)])
COLUMNS = random_source.integers(0, 2000, STARTS[-1])
VALUES = random_source.random(STARTS[-1])
VECTOR = random_source.random(2000)
KEYS = COLUMNS[:3000].tolist()


@njit
def multiply(starts, columns, values, vector, out, n):
    for _ in range(n):  # multiplied
        for row in range(out.size):  # multiplied
            total = 0.0
            for place in range(starts[row], starts[row + 1]):  # multiplied
                total += values[place] * vector[columns[place]]  # multiplied
            out[row] = total  # multiplied


@njit
def add_columns(columns, values, out, n):
    for _ in range(n):  # added
        for place in range(columns.size):  # added
            if values[place] > 0.1:  # added
                out[columns[place]] += values[place]  # added


@phase("multiplied")
def _(n):
    multiply(STARTS, COLUMNS, VALUES, VECTOR, np.empty(2000), n)


@phase("added")
def _(n):
    add_columns(COLUMNS, VALUES, np.zeros(2000), n)


@phase("grouped")
def _(n):
    for _ in range(n):
        groups = collections.defaultdict(list)
        for place, key in enumerate(KEYS):  # grouped
            groups[key].append(place)  # grouped


run()
