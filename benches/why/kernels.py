"""Kernels with one hot loop each, faster variants, and the rule that must recommend the change.

    kernels.py run SECONDS [NAME...]    runs each kernel for SECONDS of processor time (to be recorded)
    kernels.py compare [NAME...]        runs kernels and changed kernels in turns; prints the medians of the ratios
    kernels.py rules                    prints NAME HOT FIRST LAST RULE for each kernel: line numbers and expected rule

The hot line of a kernel ends with `# hot`. `RULES` maps each kernel to its expected rule.
"""

import ast
import itertools
import math
import os
import statistics
import sys
import time

import numpy as np
from numba import __version__, float64, get_num_threads, guvectorize, njit, objmode, prange, stencil, types, vectorize
from numba.experimental import jitclass
from numba.typed import Dict, List

N = 20_000


@njit
def total(a):
    s = 0.0
    for i in range(a.shape[0]):
        s += a[i]  # hot
    return s


total_changed = njit(fastmath={"reassoc"})(total.py_func)


@njit
def dot(a, b):
    s = 0.0
    for i in range(len(a)):
        s += a[i] * b[i]  # hot
    return s


dot_changed = njit(fastmath={"reassoc"})(dot.py_func)


@njit
def scaled(a, b):
    for i in range(len(a)):
        b[i] = 1.5 * a[i] + b[i] * 0.25  # hot


@njit
def ratio(a, b, out):
    for i in range(len(a)):
        out[i] = a[i] / b[i]  # hot


ratio_changed = njit(error_model="numpy")(ratio.py_func)


@njit
def bell(a, out):
    for i in range(len(a)):
        out[i] = math.exp(-a[i])  # hot


@njit
def sine(a, out):
    for i in range(len(a)):
        out[i] = math.sin(a[i])  # hot


@njit
def widened(a32, out32):
    for i in range(len(a32)):
        out32[i] = a32[i] * 0.1  # hot


@njit
def widened_changed(a32, out32):
    for i in range(len(a32)):
        out32[i] = a32[i] * np.float32(0.1)


@njit
def bins(x, ints, divisor):
    for i in range(len(x)):
        ints[i] = x[i] // divisor  # hot


@njit
def bins_changed(x, ints, divisor):
    for i in range(len(x)):
        ints[i] = x[i] // 7


@njit
def remainder(x, ints, power):
    for i in range(len(x)):
        ints[i] = x[i] % power  # hot


@njit
def remainder_changed(x, ints, power):
    for i in range(len(x)):
        ints[i] = x[i] % 256


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
def looked_up_changed(keys, table):
    s = 0.0
    for i in range(len(keys)):
        s += table[keys[i]]
    return s


@njit
def smoothed_in_place(line):
    for i in range(1, len(line) - 1):
        line[i] = 0.5 * (line[i - 1] + line[i + 1])  # hot


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
def present(gaps):
    s = 0.0
    for i in range(len(gaps)):
        if not np.isnan(gaps[i]):  # hot
            s += gaps[i]
    return s


@njit(fastmath={"reassoc"})
def present_changed(gaps):
    s = 0.0
    for i in range(len(gaps)):
        s += 0.0 if np.isnan(gaps[i]) else gaps[i]
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


# --- Kernels that `make test` skips, for all Numba releases and other processors
# --------------------------------------------


@njit
def counted_while(a):
    s = 0.0
    i = 0
    while i < len(a):
        s += a[i]  # hot
        i += 1
    return s


counted_while_changed = njit(fastmath={"reassoc"})(counted_while.py_func)


@njit
def row_sums(m, out):
    for i in range(m.shape[0]):
        s = 0.0
        for j in range(m.shape[1]):
            s += m[i, j]  # hot
        out[i] = s


row_sums_changed = njit(fastmath={"reassoc"})(row_sums.py_func)


@njit
def into_element(a, one):
    for i in range(len(a)):
        one[0] += a[i]  # hot


@njit(fastmath={"reassoc"})
def into_element_changed(a, one):
    s = one[0]
    for i in range(len(a)):
        s += a[i]
    one[0] = s


@njit
def total32(a):
    s = np.float32(0.0)
    for i in range(len(a)):
        s += a[i]  # hot
    return s


total32_changed = njit(fastmath={"reassoc"})(total32.py_func)


@njit
def total3d(cube):
    s = 0.0
    for i in range(cube.shape[0]):
        for j in range(cube.shape[1]):
            for k in range(cube.shape[2]):
                s += cube[i, j, k]  # hot
    return s


total3d_changed = njit(fastmath={"reassoc"})(total3d.py_func)


@njit
def complex_sum(z):
    s = 0j
    for i in range(len(z)):
        s += z[i]  # hot
    return s


complex_sum_changed = njit(fastmath={"reassoc"})(complex_sum.py_func)


@njit
def variance(a):
    mean = 0.5
    s = 0.0
    for i in range(len(a)):
        s += (a[i] - mean) ** 2  # hot
    return s


variance_changed = njit(fastmath={"reassoc"})(variance.py_func)


@njit(parallel=True)
def parallel_sum(large):
    s = 0.0
    for i in prange(len(large)):
        s += large[i] * large[i]  # hot
    return s


parallel_sum_changed = njit(parallel=True, fastmath={"reassoc"})(parallel_sum.py_func)


@njit
def numpy_sum(a, times):
    s = 0.0
    for _ in range(times):
        s += np.sum(a)  # hot
    return s


@njit(fastmath={"reassoc"})
def numpy_sum_changed(a, times):
    s = 0.0
    for _ in range(times):
        for i in range(len(a)):
            s += a[i]
    return s


@njit
def stencil5(m, grid):
    for i in range(1, m.shape[0] - 1):
        for j in range(1, m.shape[1] - 1):
            grid[i, j] = 0.2 * (m[i, j] + m[i - 1, j] + m[i + 1, j] + m[i, j - 1] + m[i, j + 1])  # hot


@njit
def branched(a, out):
    for i in range(len(a)):
        if a[i] > 1.0:
            out[i] = a[i] * 2.0  # hot
        else:
            out[i] = a[i] + 1.0


@njit
def square(x):
    return x * x + 1.0


@njit
def called(a, out):
    for i in range(len(a)):
        out[i] = square(a[i])  # hot


@njit
def truncated(a, ints):
    for i in range(len(a)):
        ints[i] = int(a[i])  # hot


@njit
def shifted(a, out):
    for i in range(-2, len(a) - 2):
        out[i] = a[i] * 2.0  # hot


@njit
def complex_product(z, z_out):
    for i in range(len(z)):
        z_out[i] = z[i] * z[i]  # hot


@njit(parallel=True)
def parallel_roots(large, large_out):
    for i in prange(len(large)):
        large_out[i] = math.sqrt(large[i])  # hot


@njit(boundscheck=True)
def scaled_checked(a, b):
    for i in range(len(a)):
        b[i] = 1.5 * a[i] + b[i] * 0.25  # hot


@njit
def by_scalar(a, c, out):
    for i in range(len(a)):
        out[i] = a[i] / c  # hot


by_scalar_changed = njit(fastmath={"arcp"})(by_scalar.py_func)


@njit
def normalised(m, norms, grid):
    for i in range(m.shape[0]):
        for j in range(m.shape[1]):
            grid[i, j] = m[i, j] / norms[i]  # hot


normalised_changed = njit(fastmath={"arcp"}, error_model="numpy")(normalised.py_func)


@njit
def matmul(small, small_too, product):
    for i in range(small.shape[0]):
        for j in range(small_too.shape[1]):
            s = 0.0
            for k in range(small.shape[1]):
                s += small[i, k] * small_too[k, j]  # hot
            product[i, j] = s


@njit
def matmul_changed(small, small_too, product):
    product[:] = 0.0
    for i in range(small.shape[0]):
        for k in range(small.shape[1]):
            f = small[i, k]
            for j in range(small_too.shape[1]):
                product[i, j] += f * small_too[k, j]


@njit
def relaxed(plate):
    for i in range(1, plate.shape[0] - 1):
        for j in range(1, plate.shape[1] - 1):
            plate[i, j] = 0.25 * (plate[i - 1, j] + plate[i + 1, j] + plate[i, j - 1] + plate[i, j + 1])  # hot


@njit
def counts(index, counters):
    for i in range(len(index)):
        counters[index[i]] += 1  # hot


@njit
def weighted_counts(index, a, sums):
    for i in range(len(index)):
        sums[index[i]] += a[i]  # hot


@njit
def logistic(start):
    for _ in range(20_000):
        start = 3.7 * start * (1.0 - start)  # hot
    return start


@njit
def horner(a, start):
    s = 0.0
    for i in range(len(a)):
        s = s * start + a[i]  # hot
    return s


@njit
def mandelbrot(points):
    n = 0
    for i in range(len(points)):
        z = 0j
        for _ in range(50):
            z = z * z + points[i]  # hot
            if z.real * z.real + z.imag * z.imag > 4.0:
                break
            n += 1
    return n


@njit
def largest_call(a):
    m = a[0]
    for i in range(len(a)):
        m = max(m, a[i])  # hot
    return m


largest_call_changed = largest_changed


@njit
def place_of_largest(a):
    at = 0
    for i in range(len(a)):
        if a[i] > a[at]:
            at = i  # hot
    return at


@njit
def place_and_largest(a):
    at, m = 0, a[0]
    for i in range(len(a)):
        if a[i] > m:
            m, at = a[i], i  # hot
    return at


@njit
def nearest(few, near, out):
    for i in range(len(few)):
        least = 1e9
        for j in range(len(near)):
            d = (few[i] - near[j]) * (few[i] - near[j])
            if d < least:
                least = d  # hot
        out[i] = least


@njit
def nearest_changed(few, near, out):
    n = len(near) // 4 * 4
    for i in range(len(few)):
        d0 = d1 = d2 = d3 = 1e9
        for j in range(0, n, 4):
            d0 = min(d0, (few[i] - near[j]) * (few[i] - near[j]))
            d1 = min(d1, (few[i] - near[j + 1]) * (few[i] - near[j + 1]))
            d2 = min(d2, (few[i] - near[j + 2]) * (few[i] - near[j + 2]))
            d3 = min(d3, (few[i] - near[j + 3]) * (few[i] - near[j + 3]))
        least = min(min(d0, d1), min(d2, d3))
        for j in range(n, len(near)):
            least = min(least, (few[i] - near[j]) * (few[i] - near[j]))
        out[i] = least


@njit
def range_of(a):
    low = high = a[0]
    for i in range(len(a)):
        low, high = min(low, a[i]), max(high, a[i])  # hot
    return high - low


@njit
def range_of_changed(a):
    l0 = l1 = l2 = l3 = h0 = h1 = h2 = h3 = a[0]
    n = len(a) // 4 * 4
    for i in range(0, n, 4):
        l0, l1, l2, l3 = min(l0, a[i]), min(l1, a[i + 1]), min(l2, a[i + 2]), min(l3, a[i + 3])
        h0, h1, h2, h3 = max(h0, a[i]), max(h1, a[i + 1]), max(h2, a[i + 2]), max(h3, a[i + 3])
    low, high = min(min(l0, l1), min(l2, l3)), max(max(h0, h1), max(h2, h3))
    for i in range(n, len(a)):
        low, high = min(low, a[i]), max(high, a[i])
    return high - low


@njit
def chosen_int(x, index, ints):
    for i in range(len(index)):
        ints[i] = x[index[i]]  # hot


@njit(boundscheck=True)
def chosen_checked(a, index, out):
    for i in range(len(index)):
        out[i] = a[index[i]]  # hot


chosen_checked_changed = njit(chosen_checked.py_func)


@njit
def powers(a, out):
    for i in range(len(a)):
        out[i] = a[i] ** 1.5  # hot


powers_changed = njit(fastmath=True)(powers.py_func)


@njit
def softplus(a, out):
    for i in range(len(a)):
        out[i] = math.log(1.0 + math.exp(a[i]))  # hot


@njit
def widened_sum(a32, out32):
    for i in range(len(a32)):
        out32[i] = (a32[i] - 0.5) * 2.0 + 1.0  # hot


@njit
def widened_sum_changed(a32, out32):
    for i in range(len(a32)):
        out32[i] = (a32[i] - np.float32(0.5)) * np.float32(2.0) + np.float32(1.0)


@njit
def found(x, wanted):
    for i in range(len(x)):
        if x[i] == wanted:  # hot
            return i
    return -1


@njit
def bisected(ordered, few):
    n = 0
    for i in range(len(few)):
        low, high = 0, len(ordered)
        while low < high:
            middle = (low + high) // 2
            if ordered[middle] < few[i]:  # hot
                low = middle + 1
            else:
                high = middle
        n += low
    return n


@njit
def by_four(quads, quads_out):
    for i in range(len(quads)):
        for j in range(4):
            quads_out[i, j] = quads[i, j] * 2.0  # hot


@njit
def by_four_changed(quads, quads_out):
    quads, quads_out = quads.reshape(-1), quads_out.reshape(-1)
    for i in range(len(quads)):
        quads_out[i] = quads[i] * 2.0


@njit
def stepped(a, step, out):
    for i in range(0, len(a), step):
        out[i] = a[i] * 2.0  # hot


@njit
def scaled_view(view, view_out):
    for i in range(view.shape[0]):
        for j in range(view.shape[1]):
            view_out[i, j] = 2.0 * view[i, j]  # hot


@njit
def scaled_view_changed(block, block_out):
    for i in range(block.shape[0]):
        for j in range(block.shape[1]):
            block_out[i, j] = 2.0 * block[i, j]


@njit
def zipped(a, b, out):
    i = 0
    for x, y in zip(a, b):
        out[i] = x + y  # hot
        i += 1


@njit
def zipped_changed(a, b, out):
    for i in range(len(a)):
        out[i] = a[i] + b[i]


@njit
def zipped_sum(a, b):
    s = 0.0
    for x, y in zip(a, b):
        s += x * y  # hot
    return s


@njit(fastmath={"reassoc"})
def zipped_sum_changed(a, b):
    s = 0.0
    for i in range(len(a)):
        s += a[i] * b[i]
    return s


@njit
def enumerated(a, out):
    for i, x in enumerate(a):
        out[i] = x * 2.0  # hot


@njit
def enumerated_changed(a, out):
    for i in range(len(a)):
        out[i] = a[i] * 2.0


@njit
def by_column(m, grid):
    for j in range(m.shape[1]):
        for i in range(m.shape[0]):
            grid[i, j] = 2.0 * m[i, j]  # hot


@njit
def by_column_changed(m, grid):
    for i in range(m.shape[0]):
        for j in range(m.shape[1]):
            grid[i, j] = 2.0 * m[i, j]


@njit
def column_sums(m, out):
    for j in range(m.shape[1]):
        s = 0.0
        for i in range(m.shape[0]):
            s += m[i, j]  # hot
        out[j] = s


@njit
def column_sums_changed(m, out):
    out[:] = 0.0
    for i in range(m.shape[0]):
        for j in range(m.shape[1]):
            out[j] += m[i, j]


@njit
def transposed(m, grid):
    for i in range(m.shape[0]):
        for j in range(m.shape[1]):
            grid[j, i] = m[i, j]  # hot


@njit
def row_expressions(rows, out):
    for i in range(rows.shape[0]):
        row = rows[i] * 2.0  # hot
        out[i] = row.sum()


@njit
def row_expressions_changed(rows, out):
    for i in range(rows.shape[0]):
        s = 0.0
        for j in range(rows.shape[1]):
            s += rows[i, j] * 2.0
        out[i] = s


@njit
def masked(rows, out):
    for i in range(rows.shape[0]):
        row = rows[i]
        out[i] = row[row > 0.7].size  # hot


@njit
def masked_changed(rows, out):
    for i in range(rows.shape[0]):
        n = 0
        for j in range(rows.shape[1]):
            n += rows[i, j] > 0.7
        out[i] = n


@njit
def small_products(matrices, out):
    for i in range(matrices.shape[0]):
        out[i] = np.dot(matrices[i], matrices[i])[0, 0]  # hot


@njit
def small_solutions(matrices, right, out):
    for i in range(matrices.shape[0]):
        out[i] = np.linalg.solve(matrices[i], right)[0]  # hot


@njit
def small_solutions_changed(matrices, right, out):
    a, x, n = np.empty(matrices[0].shape), np.empty(len(right)), len(right)
    for number in range(len(matrices)):
        a[:], x[:] = matrices[number], right
        for k in range(n):
            pivot = k
            for i in range(k + 1, n):
                if abs(a[i, k]) > abs(a[pivot, k]):
                    pivot = i
            x[pivot], x[k] = x[k], x[pivot]
            for j in range(k, n):
                a[pivot, j], a[k, j] = a[k, j], a[pivot, j]
            for i in range(k + 1, n):
                factor = a[i, k] / a[k, k]
                x[i] -= factor * x[k]
                for j in range(k, n):
                    a[i, j] -= factor * a[k, j]
        for i in range(n - 1, -1, -1):
            for j in range(i + 1, n):
                x[i] -= a[i, j] * x[j]
            x[i] /= a[i, i]
        out[number] = x[0]


@njit
def random_one(out):
    for i in range(len(out)):
        out[i] = np.random.random()  # hot


@njit
def random_normal(out):
    for i in range(len(out)):
        out[i] = np.random.normal()  # hot


@njit
def letters(text):
    n = 0
    for c in text:
        if c == "a":  # hot
            n += 1
    return n


@njit
def letters_changed(codes):
    n = 0
    for c in codes:
        if c == 97:
            n += 1
    return n


@njit
def words(parts):
    n = 0
    for i in range(len(parts)):
        n += len(parts[i] + "x")  # hot
    return n


@njit
def of_records(records, out):
    for i in range(len(records)):
        out[i] = records[i].x * records[i].y  # hot


@njit
def sum_of_records(records):
    s = 0.0
    for i in range(len(records)):
        s += records[i].x  # hot
    return s


sum_of_records_changed = njit(fastmath={"reassoc"})(sum_of_records.py_func)


@njit
def of_tuples(a, out):
    for i in range(len(a)):
        pair = (a[i], a[i] * 2)
        out[i] = pair[0] + pair[1]  # hot


@njit
def of_typed_list(items):
    s = 0.0
    for i in range(len(items)):
        s += items[i]  # hot
    return s


@njit
def of_typed_list_changed(a):
    s = 0.0
    for i in range(len(a)):
        s += a[i]
    return s


@njit
def of_list(a):
    items = [x for x in a]
    s = 0.0
    for _ in range(200):
        for i in range(len(items)):
            s += items[i]  # hot
    return s


of_list_changed = njit(fastmath={"reassoc"})(of_list.py_func)


@njit
def of_array_list(arrays):
    s = 0.0
    for _ in range(50):
        for i in range(len(arrays)):
            s += arrays[i][3]  # hot
    return s


@njit
def of_array_list_changed(hundreds):
    s = 0.0
    for _ in range(50):
        for i in range(100):
            s += hundreds[i, 3]
    return s


@njit
def of_set(x):
    known = set(x[:100])
    n = 0
    for i in range(len(x)):
        if x[i] in known:  # hot
            n += 1
    return n


@njit
def of_set_changed(x):
    is_known = np.zeros(100_000, np.bool_)
    for i in range(100):
        is_known[x[i]] = True
    n = 0
    for i in range(len(x)):
        if is_known[x[i]]:
            n += 1
    return n


@njit
def counted_words(keys, d):
    for i in range(len(keys)):
        d[keys[i]] += 1.0  # hot


@njit
def counted_words_changed(keys, sums):
    for i in range(len(keys)):
        sums[keys[i]] += 1.0


@njit
def python_called(a):
    s = 0.0
    for i in range(50):
        with objmode(x="float64"):
            x = float(a[i])
        s += x  # hot
    return s


@njit
def python_called_changed(a):
    s = 0.0
    for i in range(50):
        s += a[i]
    return s


@njit(parallel=True)
def shared_line(large, partial):
    for t in prange(2):
        for i in range(len(large)):
            partial[t] += large[i]  # hot


@njit(parallel=True, fastmath={"reassoc"})
def shared_line_changed(large, partial):
    for t in prange(2):
        s = 0.0
        for i in range(len(large)):
            s += large[i]
        partial[t] += s


@guvectorize([(float64[:], float64[:])], "(n)->()", nopython=True)
def row_means(m, means):
    s = 0.0
    for i in range(m.shape[0]):
        s += m[i]  # hot
    means[0] = s / m.shape[0]


@guvectorize([(float64[::1], float64[:])], "(n)->()", nopython=True, fastmath={"reassoc"})
def row_means_changed(m, means):
    s = 0.0
    for i in range(m.shape[0]):
        s += m[i]
    means[0] = s / m.shape[0]


@vectorize([float64(float64, float64)], nopython=True)
def blended(a, b):
    return a * 0.3 + b * 0.7  # hot


@njit
def weighted(m, n):
    return 0.25 * (m[0, -1] + m[0, 1] + m[-1, 0] + m[1, 0]) + n[0, 0]


four = stencil(weighted.py_func)


@njit
def numba_stencil(m, grid):
    four(m, m, out=grid)  # hot


@njit
def insertion_sorted(backwards, out):
    out[: len(backwards)] = backwards
    for i in range(1, len(backwards)):
        v = out[i]
        j = i
        while j > 0 and out[j - 1] > v:
            out[j] = out[j - 1]  # hot
            j -= 1
        out[j] = v


@njit
def collatz(small_number):
    steps = 0
    for start in range(1, small_number):
        v = start
        while v != 1:
            v = v // 2 if v % 2 == 0 else 3 * v + 1  # hot
            steps += 1
    return steps


@njit
def greatest_divisors(x, ints):
    for i in range(len(x)):
        u, v = x[i], 360
        while v:
            u, v = v, u % v  # hot
        ints[i] = u


# --- Kernels for the limits of a rule: the change gains less, or nothing, or another one gains more


@njit
def short_sums(triples, out):
    for i in range(triples.shape[0]):
        s = 0.0
        for k in range(triples.shape[1]):
            s += triples[i, k] * triples[i, k]  # hot
        out[i] = s


@njit
def short_sums_changed(triples, out):
    for i in range(triples.shape[0]):
        s = 0.0
        for k in range(3):
            s += triples[i, k] * triples[i, k]
        out[i] = s


@njit
def sums_of_eight(eights, out):
    for i in range(eights.shape[0]):
        s = 0.0
        for k in range(eights.shape[1]):
            s += eights[i, k]  # hot
        out[i] = s


@njit
def sums_of_twelve(twelves, out):
    for i in range(twelves.shape[0]):
        s = 0.0
        for k in range(twelves.shape[1]):
            s += twelves[i, k]  # hot
        out[i] = s


@njit
def sums_of_many(hundreds, out):
    for i in range(hundreds.shape[0]):
        s = 0.0
        for k in range(hundreds.shape[1]):
            s += hundreds[i, k]  # hot
        out[i] = s


sums_of_many_changed = njit(fastmath={"reassoc"})(sums_of_many.py_func)


@njit
def strided_dot(window, short, wide_step, out):
    for k in range(200):
        s = 0.0
        for i in range(len(short)):
            s += window[i * wide_step] * short[i]  # hot
        out[k] = s


@njit
def sum_by_column(m):
    s = 0.0
    for j in range(m.shape[1]):
        for i in range(m.shape[0]):
            s += m[i, j]  # hot
    return s


@njit(fastmath={"reassoc"})
def sum_by_column_changed(m):
    s = 0.0
    for i in range(m.shape[0]):
        for j in range(m.shape[1]):
            s += m[i, j]
    return s


@njit
def sum_of_first(triples):
    s = 0.0
    for i in range(triples.shape[0]):
        s += triples[i, 0] * triples[i, 1]  # hot
    return s


@njit
def fibonacci(a):
    u, v = 0.0, 1.0
    for i in range(len(a)):
        u, v = v, u + v * 0.5  # hot
    return v


@njit
def alternating(a):
    s = 0.0
    for i in range(len(a)):
        s = a[i] - s  # hot
    return s


@njit
def moving_average(a):
    s = 0.0
    for i in range(len(a)):
        s += (a[i] - s) * 0.1  # hot
    return s


@njit
def gathered_sum(table, keys):
    s = 0.0
    for i in range(len(keys)):
        s += table[keys[i]]  # hot
    return s


gathered_sum_changed = njit(fastmath={"reassoc"})(gathered_sum.py_func)


@njit
def gathered_sum_of_many(large, places):
    s = 0.0
    for i in range(len(places)):
        s += large[places[i]]  # hot
    return s


gathered_sum_of_many_changed = njit(fastmath={"reassoc"})(gathered_sum_of_many.py_func)


@njit
def by_scalar32(a32, c32, out32):
    for i in range(len(a32)):
        out32[i] = a32[i] / c32  # hot


@njit
def remainder7(x, ints, divisor):
    for i in range(len(x)):
        ints[i] = x[i] % divisor  # hot


@njit
def remainder7_changed(x, ints, divisor):
    for i in range(len(x)):
        ints[i] = x[i] % 7


@njit
def ring(a, times, divisor):
    s = 0.0
    for i in range(len(a)):
        s += a[i % divisor]  # hot
    return s


@njit
def ring_changed(a, times, divisor):
    s = 0.0
    k = 0
    for i in range(len(a)):
        s += a[k]
        k += 1
        if k == divisor:
            k = 0
    return s


@njit
def appended_if(a):
    found = [0.0]
    for i in range(len(a)):
        if a[i] > 0.7:
            found.append(a[i])  # hot
    return len(found)


@njit
def appended_if_changed(a):
    found = np.empty(len(a))
    n = 0
    for i in range(len(a)):
        if a[i] > 0.7:
            found[n] = a[i]
            n += 1
    return n


@njit
def sum_if(a):
    s = 0.0
    for i in range(len(a)):
        if a[i] > 1.0:  # hot
            s += a[i]
    return s


@njit(fastmath={"reassoc"})
def sum_if_changed(a):
    s = 0.0
    for i in range(len(a)):
        s += a[i] if a[i] > 1.0 else 0.0
    return s


@njit
def sum_of_both(a, b):
    s = 0.0
    for i in range(len(a)):
        if a[i] > 1.0:  # hot
            s += a[i]
        else:
            s -= b[i] * 0.5
    return s


@njit(fastmath={"reassoc"})
def sum_of_both_changed(a, b):
    s = 0.0
    for i in range(len(a)):
        s += a[i] if a[i] > 1.0 else -b[i] * 0.5
    return s


@njit
def masked_row_means(m, present_cells, means):
    for i in range(m.shape[0]):
        total, count = 0.0, 0
        for j in range(m.shape[1]):
            if present_cells[i, j]:  # hot
                total += m[i, j]
                count += 1
        means[i] = total / count


@njit(fastmath={"reassoc"})
def masked_row_means_changed(m, present_cells, means):
    for i in range(m.shape[0]):
        total, count = 0.0, 0
        for j in range(m.shape[1]):
            total += m[i, j] if present_cells[i, j] else 0.0
            count += 1 if present_cells[i, j] else 0
        means[i] = total / count


@njit
def of_lists(a):
    lists = [[x for x in a[:200]] for _ in range(50)]
    s = 0.0
    for _ in range(400):
        for row in lists:
            for x in row:
                s += x  # hot
    return s


of_lists_changed = njit(fastmath={"reassoc"})(of_lists.py_func)


@njit
def lagged(a, out, lag):
    for i in range(len(a)):
        out[i] = a[i - lag] * 0.5  # hot


@njit
def lagged_changed(a, out, lag):
    before, last = a[: len(a) - lag], a[len(a) - lag :]
    for i in range(len(last)):
        out[i] = last[i] * 0.5
    rest = out[lag:]
    for i in range(len(before)):
        rest[i] = before[i] * 0.5


# --- Kernels whose time is in one function


@njit
def float_remainder(a, out):
    for i in range(len(a)):
        out[i] = a[i] % 0.3  # hot


@njit
def float_remainder_changed(a, out):
    for i in range(len(a)):
        out[i] = a[i] - math.floor(a[i] / 0.3) * 0.3


@njit
def floored(a, out):
    for i in range(len(a)):
        out[i] = a[i] // 0.3  # hot


@njit
def floored_changed(a, out):
    for i in range(len(a)):
        out[i] = math.floor(a[i] / 0.3)


@njit
def typed_appended(a):
    found = List.empty_list(types.float64)
    for i in range(len(a)):
        found.append(a[i] * 2.0)  # hot
    return found[-1]


typed_appended_changed = njit(appended_changed.py_func)


@njit
def array_appended(few):
    found = np.empty(0)
    for i in range(len(few)):
        found = np.append(found, few[i] * 2.0)  # hot
    return found[-1]


@njit
def array_appended_changed(few):
    found = np.empty(len(few))
    for i in range(len(few)):
        found[i] = few[i] * 2.0
    return found[-1]


@njit
def row_norms(eights, out):
    for i in range(eights.shape[0]):
        out[i] = np.linalg.norm(eights[i])  # hot


@njit(fastmath={"reassoc"})
def row_norms_changed(eights, out):
    for i in range(eights.shape[0]):
        s = 0.0
        for j in range(eights.shape[1]):
            s += eights[i, j] * eights[i, j]
        out[i] = math.sqrt(s)


@njit
def long_row_norms(m, out):
    for i in range(m.shape[0]):
        out[i] = np.linalg.norm(m[i])  # hot


@njit(fastmath={"reassoc"})
def long_row_norms_changed(m, out):
    for i in range(m.shape[0]):
        s = 0.0
        for j in range(m.shape[1]):
            s += m[i, j] * m[i, j]
        out[i] = math.sqrt(s)


@njit
def long_row_products(m, norms, out):
    for i in range(m.shape[0]):
        out[i] = np.dot(m[i], norms)  # hot


@njit
def outer_products(rows, square):
    for i in range(rows.shape[0]):
        square += np.outer(rows[i], rows[i])  # hot


@njit
def outer_products_changed(rows, square):
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            for k in range(rows.shape[1]):
                square[j, k] += rows[i, j] * rows[i, k]


@njit
def joined_rows(few_rows):
    found = np.zeros((0, 3))
    for i in range(few_rows.shape[0]):
        if few_rows[i, 0] > 0.5:
            found = np.concatenate((found, few_rows[i : i + 1]))  # hot
    return len(found)


@njit
def joined_rows_changed(few_rows):
    found = np.empty(few_rows.shape)
    n = 0
    for i in range(few_rows.shape[0]):
        if few_rows[i, 0] > 0.5:
            found[n] = few_rows[i]
            n += 1
    return n


@njit
def joined_long(a, b, few_out):
    for i in range(10):
        c = np.concatenate((a, b[i:]))  # hot
        few_out[i] = c[-1]


@njit
def counted_texts(text, text_counts):
    for i in range(len(text) - 2):
        text_counts[text[i : i + 3]] += 1  # hot


@njit
def counted_texts_changed(codes, counters):
    for i in range(len(codes) - 2):
        counters[(codes[i] & 7) * 64 + (codes[i + 1] & 7) * 8 + (codes[i + 2] & 7)] += 1


@njit
def polygon_area(a, b):
    s = 0.0
    n = len(a)
    for i in range(n):
        j = (i + 1) % n
        s += a[i] * b[j] - a[j] * b[i]  # hot
    return s / 2


polygon_area_changed = njit(fastmath={"reassoc"})(polygon_area.py_func)


@njit
def polygon_area_changed_for_integer_division(a, b):
    s = 0.0
    n = len(a)
    for i in range(n):
        j = i + 1
        if j == n:
            j = 0
        s += a[i] * b[j] - a[j] * b[i]
    return s / 2


@njit
def causal_filter(near, short, near_out):
    for i in range(len(near)):
        s = 0.0
        for k in range(len(short)):
            if i - k >= 0:
                s += short[k] * near[i - k]  # hot
        near_out[i] = s


@njit
def shares(a, group_sizes, out):
    for i in range(len(a)):
        out[i] = a[i] / group_sizes[i]  # hot


shares_changed = njit(error_model="numpy")(shares.py_func)


@njit
def checked_gather(a, index, out):
    for i in range(len(index)):
        v = a[index[i]]
        if v < 0.0:
            raise ValueError("negative")
        out[i] = math.sqrt(v)  # hot


@njit
def streamed(distributions, moved_distributions, x_steps, y_steps):
    for i in range(1, distributions.shape[0] - 1):
        for j in range(1, distributions.shape[1] - 1):
            for k in range(distributions.shape[2]):
                moved_distributions[i + y_steps[k], j + x_steps[k], k] = distributions[i, j, k] * 0.5  # hot


@njit
def where_sums(rows, out):
    for i in range(rows.shape[0]):
        out[i] = np.where(rows[i] > 0.5, rows[i], 0.0).sum()  # hot


@njit(fastmath={"reassoc"})
def where_sums_changed(rows, out):
    for i in range(rows.shape[0]):
        s = 0.0
        for j in range(rows.shape[1]):
            s += rows[i, j] if rows[i, j] > 0.5 else 0.0
        out[i] = s


@njit
def into_attribute(a, tally):
    for i in range(len(a)):
        tally.sum += a[i]  # hot


@njit(fastmath={"reassoc"})
def into_attribute_changed(a, tally):
    s = tally.sum
    for i in range(len(a)):
        s += a[i]
    tally.sum = s


@njit
def sum_of_ratios(a, b):
    s = 0.0
    for i in range(len(a)):
        s += a[i] / b[i]  # hot
    return s


sum_of_ratios_changed = njit(error_model="numpy", fastmath={"reassoc"})(sum_of_ratios.py_func)


@njit
def lagged_sum(a, lag):
    s = 0.0
    for i in range(len(a)):
        s += a[i] * a[i - lag]  # hot
    return s


@njit(fastmath={"reassoc"})
def lagged_sum_changed(a, lag):
    before, last = a[: len(a) - lag], a[len(a) - lag :]
    rest = a[lag:]
    s = 0.0
    for i in range(len(before)):
        s += rest[i] * before[i]
    for i in range(len(last)):
        s += a[i] * last[i]
    return s


@njit
def magnitudes(z, out):
    for i in range(len(z)):
        out[i] = abs(z[i])  # hot


@njit
def magnitudes_changed(z, out):
    for i in range(len(z)):
        out[i] = math.sqrt(z[i].real * z[i].real + z[i].imag * z[i].imag)


@njit
def row_products(eights, eight, out):
    for i in range(eights.shape[0]):
        out[i] = np.dot(eights[i], eight)  # hot


@njit(fastmath={"reassoc"})
def row_products_changed(eights, eight, out):
    for i in range(eights.shape[0]):
        s = 0.0
        for j in range(eights.shape[1]):
            s += eights[i, j] * eight[j]
        out[i] = s


@njit
def letters_equal(text):
    n = 0
    for i in range(len(text)):
        if text[i] == "a":  # hot
            n += 1
    return n


@njit
def letters_equal_changed(codes):
    n = 0
    for i in range(len(codes)):
        if codes[i] == 97:
            n += 1
    return n


@njit
def joined(times):
    s = ""
    for _ in range(times * 200):
        s += "ab"  # hot
    return len(s)


@njit
def joined_changed(times):
    return len("".join(["ab" for _ in range(times * 200)]))


@njit
def integer_powers(a, out, exponent):
    for i in range(len(a)):
        out[i] = a[i] ** exponent  # hot


@njit
def integer_powers_changed(a, out, exponent):
    for i in range(len(a)):
        out[i] = a[i] * a[i] * a[i]


@njit
def of_tuple(eight_values, eighths):
    s = 0.0
    for i in range(len(eighths)):
        s += eight_values[eighths[i]]  # hot
    return s


@njit
def of_tuple_changed(eight, eighths):
    s = 0.0
    for i in range(len(eighths)):
        s += eight[eighths[i]]
    return s


@njit(parallel=True)
def small_parallel(few, few_out):
    for i in prange(len(few)):
        few_out[i] = few[i] * 1.5  # hot


@njit
def small_parallel_changed(few, few_out):
    for i in range(len(few)):
        few_out[i] = few[i] * 1.5


@njit
def periodic(a, table):
    s = 0.0
    for i in range(len(a)):
        s += a[i] * table[i % 1000]  # hot
    return s


@njit
def repeated(large, a):
    s = 0.0
    for i in range(len(a)):
        s += large[i // 7]  # hot
    return s


@njit
def small_products_changed(matrices, out):
    product = np.empty((4, 4))
    for i in range(matrices.shape[0]):
        for j in range(4):
            for k in range(4):
                s = 0.0
                for n in range(4):
                    s += matrices[i, j, n] * matrices[i, n, k]
                product[j, k] = s
        out[i] = product[0, 0]


@njit
def energy(bodies):
    s = 0.0
    for i in range(len(bodies)):
        s += bodies[i].mass * (bodies[i].u * bodies[i].u + bodies[i].v * bodies[i].v)  # hot
    return s


@njit
def row_crosses(triples, triples_out):
    for i in range(len(triples)):
        triples_out[i] = np.cross(triples[i], triples[0])  # hot


@njit
def row_crosses_changed(triples, triples_out):
    for i in range(len(triples)):
        triples_out[i, 0] = triples[i, 1] * triples[0, 2] - triples[i, 2] * triples[0, 1]
        triples_out[i, 1] = triples[i, 2] * triples[0, 0] - triples[i, 0] * triples[0, 2]
        triples_out[i, 2] = triples[i, 0] * triples[0, 1] - triples[i, 1] * triples[0, 0]


@njit
def characters(text):
    n = 0
    for c in text:
        if c == "a" or c == "n":  # hot
            n += 1
    return n


@njit
def characters_changed(codes):
    n = 0
    for c in codes:
        if c == 97 or c == 110:
            n += 1
    return n


@njit
def integer_polynomial(a, out, exponent):
    for i in range(len(a)):
        out[i] = 2.0 * a[i] ** exponent + 3.0 * a[i] ** (exponent - 1)  # hot


@njit
def integer_polynomial_changed(a, out, exponent):
    for i in range(len(a)):
        square = a[i] * a[i]
        out[i] = 2.0 * square * a[i] + 3.0 * square


@njit
def lengths_as_text(small_number):
    n = 0
    for i in range(small_number):
        n += len(str(i))  # hot
    return n


@njit
def column_sum_if(m):
    s = 0.0
    for j in range(m.shape[1]):
        for i in range(m.shape[0]):
            if m[i, j] > 1.0:
                s += m[i, j]  # hot
    return s


@njit(fastmath={"reassoc"})
def column_sum_if_changed(m):
    s = 0.0
    for i in range(m.shape[0]):
        for j in range(m.shape[1]):
            s += m[i, j] if m[i, j] > 1.0 else 0.0
    return s


@njit
def swept(a, b, out):
    for i in range(1, len(a)):
        out[i] = (a[i] - 0.1 * out[i - 1]) / b[i]  # hot


@njit
def polynomial(a, few_coefficients, out):
    for i in range(len(a)):
        s = 0.0
        for k in range(len(few_coefficients)):
            s = s * a[i] + few_coefficients[k]  # hot
        out[i] = s


@njit
def polynomial_changed(a, few_coefficients, out):
    for i in range(len(a)):
        s = 0.0
        for k in range(6):
            s = s * a[i] + few_coefficients[k]
        out[i] = s


@njit
def square_roots(a, five, out):
    for i in range(len(a)):
        x = a[i]
        for _ in range(five):
            x = x * (1.5 - 0.5 * a[i] * x * x)  # hot
        out[i] = x


@njit
def square_roots_changed(a, five, out):
    for i in range(len(a)):
        x = a[i]
        for _ in range(5):
            x = x * (1.5 - 0.5 * a[i] * x * x)
        out[i] = x


@njit
def running_columns(m, grid):
    for j in range(m.shape[1]):
        s = 0.0
        for i in range(m.shape[0]):
            s += m[i, j]  # hot
            grid[i, j] = s


@njit
def running_columns_changed(m, grid):
    for j in range(m.shape[1]):
        grid[0, j] = m[0, j]
    for i in range(1, m.shape[0]):
        for j in range(m.shape[1]):
            grid[i, j] = grid[i - 1, j] + m[i, j]


@njit
def decaying_columns(m, grid, start):
    for j in range(m.shape[1]):
        level = start
        for i in range(m.shape[0]):
            level = 0.9 * level + 0.1 * m[i, j]  # hot
            grid[i, j] = level


@njit
def decaying_columns_changed(m, grid, start):
    for j in range(m.shape[1]):
        grid[0, j] = 0.9 * start + 0.1 * m[0, j]
    for i in range(1, m.shape[0]):
        for j in range(m.shape[1]):
            grid[i, j] = 0.9 * grid[i - 1, j] + 0.1 * m[i, j]


@njit
def reservoirs(m, grid):
    for j in range(m.shape[1]):
        for i in range(1, m.shape[0]):
            grid[i, j] = grid[i - 1, j] * 0.5 + m[i, j] * 0.25  # hot


@njit
def reservoirs_changed(m, grid):
    for i in range(1, m.shape[0]):
        for j in range(m.shape[1]):
            grid[i, j] = grid[i - 1, j] * 0.5 + m[i, j] * 0.25


@njit
def list_decayed(items):
    for i in range(1, len(items)):
        items[i] = items[i - 1] * 0.5 + items[i] * 0.5  # hot


@njit
def list_decayed_changed(a):
    for i in range(1, len(a)):
        a[i] = a[i - 1] * 0.5 + a[i] * 0.5


@njit
def unit_vectors(quads):
    for i in range(quads.shape[0]):
        x, y, z = quads[i, 0], quads[i, 1], quads[i, 2]
        length = math.sqrt(x * x + y * y + z * z)
        quads[i, 0] = x / length  # hot
        quads[i, 1] = y / length
        quads[i, 2] = z / length


@njit
def unit_vectors_changed(quads):
    for i in range(quads.shape[0]):
        x, y, z = quads[i, 0], quads[i, 1], quads[i, 2]
        scale = 1.0 / math.sqrt(x * x + y * y + z * z)
        quads[i, 0] = x * scale
        quads[i, 1] = y * scale
        quads[i, 2] = z * scale


@njit
def counted_members(keys):
    wanted = {3, 50, 77, 500}
    n = 0
    for i in range(len(keys)):
        if keys[i] in wanted:
            n += 1  # hot
    return n


@njit
def counted_members_changed(keys):
    is_wanted = np.zeros(1000, np.bool_)
    for key in (3, 50, 77, 500):
        is_wanted[key] = True
    n = 0
    for i in range(len(keys)):
        if is_wanted[keys[i]]:
            n += 1
    return n


@njit
def counted_in_memory(x, counters):
    for i in range(len(x)):
        if x[i] > 50_000:
            counters[0] += 1  # hot


@njit
def counted_in_memory_changed(x, counters):
    n = 0
    for i in range(len(x)):
        if x[i] > 50_000:
            n += 1
    counters[0] += n


@njit
def counts_of_rows(m, counters):
    for i in range(m.shape[0]):
        for j in range(m.shape[1]):
            if m[i, j] > 1.0:
                counters[i] += 1  # hot


@njit
def counts_of_rows_changed(m, counters):
    for i in range(m.shape[0]):
        n = 0
        for j in range(m.shape[1]):
            if m[i, j] > 1.0:
                n += 1
        counters[i] += n


@njit
def summed_in_memory(x, counters):
    for i in range(len(x)):
        counters[0] += x[i]  # hot


@njit
def smoothed(m, grid):
    for i in range(1, m.shape[0] - 1):
        for j in range(1, m.shape[1] - 1):
            s = m[i - 1, j - 1] + m[i - 1, j] + m[i - 1, j + 1] + m[i, j - 1] + m[i, j] + m[i, j + 1]
            grid[i, j] = (s + m[i + 1, j - 1] + m[i + 1, j] + m[i + 1, j + 1]) / 9.0  # hot


@njit
def brightness(codes, values):
    for i in range(len(codes)):
        values[i] = codes[i] / 255.0  # hot


brightness_changed = njit(fastmath={"arcp"})(brightness.py_func)


@njit
def pair_energy(hundred_points):
    e = 0.0
    for i in range(len(hundred_points)):
        for j in range(i + 1, len(hundred_points)):
            r2 = 0.0
            for d in range(3):
                t = hundred_points[i, d] - hundred_points[j, d]
                r2 += t * t
            s6 = (1.0 / r2) ** 3
            e += s6 * s6 - s6  # hot
    return e


pair_energy_changed = njit(error_model="numpy", fastmath={"reassoc"})(pair_energy.py_func)


@njit
def updated_columns(grid_too, small_factor):
    for j in range(grid_too.shape[1]):
        for i in range(1, grid_too.shape[0]):
            grid_too[i, j] = grid_too[i, j] + small_factor * grid_too[i - 1, j]  # hot


@njit
def updated_columns_changed(grid_too, small_factor):
    for i in range(1, grid_too.shape[0]):
        for j in range(grid_too.shape[1]):
            grid_too[i, j] = grid_too[i, j] + small_factor * grid_too[i - 1, j]


@njit
def row_deviations(m, means):
    for i in range(m.shape[0]):
        means[i] = np.std(m[i])  # hot


@njit(fastmath={"reassoc"})
def row_deviations_changed(m, means):
    for i in range(m.shape[0]):
        s = 0.0
        for j in range(m.shape[1]):
            s += m[i, j]
        mean, squares = s / m.shape[1], 0.0
        for j in range(m.shape[1]):
            squares += (m[i, j] - mean) ** 2
        means[i] = math.sqrt(squares / m.shape[1])


@njit
def classes(a):
    low, middle, high = 0, 0, 0
    for i in range(a.shape[0]):
        if a[i] < 0.8:  # hot
            low += 1
        elif a[i] < 1.1:
            middle += 1
        else:
            high += 1
    return low, middle, high


@njit
def classes_changed(a):
    low, middle, high = 0, 0, 0
    for i in range(a.shape[0]):
        low += a[i] < 0.8
        middle += (a[i] >= 0.8) & (a[i] < 1.1)
        high += a[i] >= 1.1
    return low, middle, high


@njit
def escape_times(few_out):
    for i in range(few_out.shape[0]):
        c, z, steps = complex(-0.5 + 0.0015 * i, 0.5), 0j, 0
        while steps < 200 and abs(z) < 2.0:
            z = z * z + c  # hot
            steps += 1
        few_out[i] = steps


@njit
def escape_times_changed(few_out):
    for i in range(few_out.shape[0]):
        c, z, steps = complex(-0.5 + 0.0015 * i, 0.5), 0j, 0
        while steps < 200 and math.sqrt(z.real * z.real + z.imag * z.imag) < 2.0:
            z = z * z + c
            steps += 1
        few_out[i] = steps


@njit
def cut_off_energy(x_near, y_near, z_near):
    s = 0.0
    for i in range(x_near.shape[0]):
        for j in range(i):
            dx, dy, dz = x_near[i] - x_near[j], y_near[i] - y_near[j], z_near[i] - z_near[j]
            d = dx * dx + dy * dy + dz * dz  # hot
            if d < 1.0:
                s += 1.0 / (d * d * d)
    return s


@njit(error_model="numpy", fastmath={"reassoc"})
def cut_off_energy_changed(x_near, y_near, z_near):
    s = 0.0
    for i in range(x_near.shape[0]):
        for j in range(i):
            dx, dy, dz = x_near[i] - x_near[j], y_near[i] - y_near[j], z_near[i] - z_near[j]
            d = dx * dx + dy * dy + dz * dz
            s += 1.0 / (d * d * d) if d < 1.0 else 0.0
    return s


@njit
def cut_off_points(thousand_points):
    s = 0.0
    for i in range(thousand_points.shape[0]):
        for j in range(i):
            dx = thousand_points[i, 0] - thousand_points[j, 0]
            dy = thousand_points[i, 1] - thousand_points[j, 1]
            d = dx * dx + dy * dy  # hot
            if d < 4.0:
                s += 1.0 / d
    return s


@njit(error_model="numpy", fastmath={"reassoc"})
def cut_off_points_changed(thousand_points):
    s = 0.0
    x, y = thousand_points[:, 0].copy(), thousand_points[:, 1].copy()
    for i in range(x.shape[0]):
        for j in range(i):
            dx, dy = x[i] - x[j], y[i] - y[j]
            d = dx * dx + dy * dy
            s += 1.0 / d if d < 4.0 else 0.0
    return s


@njit
def cut_off_lengths(x_near, y_near):
    s = 0.0
    for i in range(x_near.shape[0]):
        for j in range(i):
            dx, dy = x_near[i] - x_near[j], y_near[i] - y_near[j]
            d = dx * dx + dy * dy
            if d < 4.0:
                s += math.sqrt(d)  # hot
    return s


@njit(fastmath={"reassoc"})
def cut_off_lengths_changed(x_near, y_near):
    s = 0.0
    for i in range(x_near.shape[0]):
        for j in range(i):
            dx, dy = x_near[i] - x_near[j], y_near[i] - y_near[j]
            d = dx * dx + dy * dy
            s += math.sqrt(d) if d < 4.0 else 0.0
    return s


@njit
def integer_classes(keys):
    low, middle, high = 0, 0, 0
    for i in range(keys.shape[0]):
        if keys[i] < 300:  # hot
            low += 1
        elif keys[i] < 600:
            middle += 1
        else:
            high += 1
    return low, middle, high


@njit
def integer_classes_changed(keys):
    low, middle, high = 0, 0, 0
    for i in range(keys.shape[0]):
        low += keys[i] < 300
        middle += (keys[i] >= 300) & (keys[i] < 600)
        high += keys[i] >= 600
    return low, middle, high


@njit
def counted_bases(bases):
    a, c, g, t = 0, 0, 0, 0
    for i in range(bases.shape[0]):
        if bases[i] == 65:  # hot
            a += 1
        elif bases[i] == 67:
            c += 1
        elif bases[i] == 71:
            g += 1
        elif bases[i] == 84:
            t += 1
    return a, c, g, t


@njit
def counted_bases_changed(bases):
    a, c, g, t = 0, 0, 0, 0
    for i in range(bases.shape[0]):
        a += bases[i] == 65
        c += bases[i] == 67
        g += bases[i] == 71
        t += bases[i] == 84
    return a, c, g, t


@njit
def is_ascending(ordered):
    for i in range(ordered.shape[0] - 1):
        if ordered[i] > ordered[i + 1]:  # hot
            return False
    return True


@njit
def is_ascending_changed(ordered):
    bad = False
    for i in range(ordered.shape[0] - 1):
        bad |= ordered[i] > ordered[i + 1]
    return not bad


@njit
def has_negative(x):
    for i in range(x.shape[0]):
        if x[i] < 0:  # hot
            return True
    return False


@njit
def has_negative_changed(x):
    bad = False
    for i in range(x.shape[0]):
        bad |= x[i] < 0
    return bad


@njit
def short_medians(fives, few_medians):
    for i in range(fives.shape[0]):
        few_medians[i] = np.median(fives[i])  # hot


@njit
def short_medians_changed(fives, few_medians):
    values = np.empty(5)
    for i in range(fives.shape[0]):
        for n in range(5):
            value, k = fives[i, n], n
            while k > 0 and values[k - 1] > value:
                values[k] = values[k - 1]
                k -= 1
            values[k] = value
        few_medians[i] = values[2]


@njit
def sorted_triples(triples, triples_out):
    for i in range(triples.shape[0]):
        triples_out[i] = np.sort(triples[i])  # hot


@njit
def sorted_triples_changed(triples, triples_out):
    for i in range(triples.shape[0]):
        x, y, z = triples[i, 0], triples[i, 1], triples[i, 2]
        x, y = min(x, y), max(x, y)
        y, z = min(y, z), max(y, z)
        triples_out[i, 0], triples_out[i, 1], triples_out[i, 2] = min(x, y), max(x, y), z


@njit
def lengths_by_step(a):
    longest = 0.0
    for k in range(1, 11):
        s = 0.0
        for j in range(1, len(a) // k):
            s += abs(a[j * k] - a[(j - 1) * k])  # hot
        longest = max(longest, s)
    return longest


@njit
def two_powers(a, out):
    for i in range(len(a)):
        out[i] = a[i] ** 0.5 + a[i] ** 2.5  # hot


two_powers_changed = njit(fastmath=True)(two_powers.py_func)


@njit
def roots_by_newton(a, out):
    for i in range(len(a)):
        x = a[i]
        for _ in range(12):
            x = 0.5 * (x + a[i] / x)  # hot
        out[i] = x


roots_by_newton_changed = njit(error_model="numpy")(roots_by_newton.py_func)


@njit
def interpolated(few, ordered_few, few_heights, few_out):
    for i in range(len(few)):
        few_out[i] = np.interp(few[i], ordered_few, few_heights)  # hot


@njit
def interpolated_changed(few, ordered_few, few_heights, few_out):
    few_out[:] = np.interp(few, ordered_few, few_heights)


@njit
def determinants(threes, sums):
    for i in range(len(threes)):
        sums[i] = np.linalg.det(threes[i])  # hot


@njit
def determinants_changed(threes, sums):
    for i in range(len(threes)):
        t = threes[i]
        sums[i] = (
            t[0, 0] * (t[1, 1] * t[2, 2] - t[1, 2] * t[2, 1])
            - t[0, 1] * (t[1, 0] * t[2, 2] - t[1, 2] * t[2, 0])
            + t[0, 2] * (t[1, 0] * t[2, 1] - t[1, 1] * t[2, 0])
        )


@njit
def inverses(threes, threes_out):
    for i in range(len(threes)):
        threes_out[i] = np.linalg.inv(threes[i])  # hot


@njit
def inverses_changed(threes, threes_out):
    for n in range(len(threes)):
        t, out = threes[n], threes_out[n]
        a, b, c = t[0, 0], t[0, 1], t[0, 2]
        d, e, f = t[1, 0], t[1, 1], t[1, 2]
        g, h, i = t[2, 0], t[2, 1], t[2, 2]
        factor = 1.0 / (a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g))
        out[0, 0], out[0, 1], out[0, 2] = (e * i - f * h) * factor, (c * h - b * i) * factor, (b * f - c * e) * factor
        out[1, 0], out[1, 1], out[1, 2] = (f * g - d * i) * factor, (a * i - c * g) * factor, (c * d - a * f) * factor
        out[2, 0], out[2, 1], out[2, 2] = (d * h - e * g) * factor, (b * g - a * h) * factor, (a * e - b * d) * factor


@njit
def large_solutions(forties, forty):
    s = 0.0
    for i in range(len(forties)):
        s += np.linalg.solve(forties[i], forty)[0]  # hot
    return s


@njit
def moved(particles):
    for i in range(len(particles.x)):
        particles.x[i] += particles.v[i] * particles.step  # hot


@njit
def moved_changed(particles):
    x, v, step = particles.x, particles.v, particles.step
    for i in range(len(x)):
        x[i] += v[i] * step


@njit
def scaled_attribute(particles, a):
    for i in range(len(a)):
        particles.v[i] = a[i] * 2.0  # hot


@njit
def scaled_attribute_changed(particles, a):
    v = particles.v
    for i in range(len(a)):
        v[i] = a[i] * 2.0


@njit
def ends_of_arrays(many_arrays):
    s = 0.0
    for _ in range(20):
        for array in many_arrays:
            s += array[0] + array[-1]  # hot
    return s


ends_of_arrays_changed = njit(fastmath={"reassoc"})(ends_of_arrays.py_func)


@njit
def backwards_dot(a, b):
    s = 0.0
    n = len(a)
    for i in range(n):
        s += a[i] * b[n - 1 - i]  # hot
    return s


@njit
def mirrored(a, out):
    n = len(a)
    for i in range(n):
        out[i] = a[n - 1 - i] * 2.0  # hot


@njit
def nested_lists(nested):
    s = 0.0
    for i in range(len(nested)):
        for j in range(len(nested[i])):
            s += nested[i][j]  # hot
    return s


@njit
def nested_lists_changed(nested):
    s = 0.0
    for i in range(len(nested)):
        row = nested[i]
        for j in range(len(row)):
            s += row[j]
    return s


@njit
def complemented(bases, codes_out):
    for i in range(len(bases)):
        base = bases[i]
        if base == 65:  # hot
            codes_out[i] = 84
        elif base == 67:
            codes_out[i] = 71
        elif base == 71:
            codes_out[i] = 67
        else:
            codes_out[i] = 65


@njit
def signed_sum(a):
    s, sign = 0.0, 1.0
    for i in range(len(a)):
        s += sign * a[i]  # hot
        sign = -sign
    return s


@njit(fastmath={"reassoc"})
def signed_sum_changed(a):
    s = 0.0
    for i in range(len(a)):
        s += a[i] if i % 2 == 0 else -a[i]
    return s


@njit
def moment(a):
    s, weight = 0.0, 0.0
    for i in range(len(a)):
        s += weight * a[i]  # hot
        weight += 0.5
    return s


moment_changed = njit(fastmath={"reassoc"})(moment.py_func)


@njit
def block_sums(a, twenty):
    size = len(a) // len(twenty)
    for block in range(len(twenty)):
        for i in range(block * size, (block + 1) * size):
            twenty[block] += a[i]  # hot


@njit(fastmath={"reassoc"})
def block_sums_changed(a, twenty):
    size = len(a) // len(twenty)
    for block in range(len(twenty)):
        part = a[block * size : (block + 1) * size]
        s = 0.0
        for i in range(size):
            s += part[i]
        twenty[block] += s


@njit
def sum_of_large32(a32):
    s = np.float32(0.0)
    for i in range(len(a32)):
        if a32[i] > np.float32(0.9):
            s += a32[i]  # hot
    return s


@njit(fastmath={"reassoc"})
def sum_of_large32_changed(a32):
    s = np.float32(0.0)
    for i in range(len(a32)):
        s += a32[i] if a32[i] > np.float32(0.9) else np.float32(0.0)
    return s


@njit
def impedances(z, z_too, z_out):
    for i in range(len(z)):
        z_out[i] = z[i] / z_too[i]  # hot


@njit
def impedances_changed(z, z_too, z_out):
    for i in range(len(z)):
        w = z_too[i]
        z_out[i] = z[i] * w.conjugate() * (1.0 / (w.real * w.real + w.imag * w.imag))


@njit
def weighted_phasors(z, a, z_out):
    for i in range(len(z)):
        z_out[i] = z[i] / a[i]  # hot


@njit
def weighted_phasors_changed(z, a, z_out):
    for i in range(len(z)):
        z_out[i] = z[i] * (1.0 / a[i])


@njit
def phasors(z, c, z_out):
    for i in range(len(z)):
        z_out[i] = z[i] / c  # hot


@njit
def phasors_changed(z, c, z_out):
    factor = 1.0 / c
    for i in range(len(z)):
        z_out[i] = z[i] * factor


@njit
def days(x, out):
    for i in range(len(x)):
        out[i] = (x[i] - 7) / 86_400.0  # hot


@njit
def inverse_lengths(a, b, out):
    for i in range(len(a)):
        out[i] = a[i] / math.sqrt(b[i])  # hot


inverse_lengths_changed = njit(error_model="numpy")(inverse_lengths.py_func)


@njit
def potential_at_origin(a, b):
    energy = 0.0
    for i in range(len(a)):
        energy -= 1.0 / math.sqrt(a[i] * a[i] + b[i] * b[i])  # hot
    return energy


potential_at_origin_changed = njit(error_model="numpy", fastmath={"reassoc"})(potential_at_origin.py_func)


@njit
def ratios_of_three(triples, scales, triples_out):
    for i in range(triples.shape[0]):
        for k in range(triples.shape[1]):
            triples_out[i, k] = triples[i, k] / scales[k]  # hot


ratios_of_three_changed = njit(error_model="numpy")(ratios_of_three.py_func)


@njit
def moved_points(triples, scales, triples_out):
    for i in range(triples.shape[0]):
        for k in range(triples.shape[1]):
            triples_out[i, k] = triples[i, k] - scales[k]  # hot


@njit
def moved_points_changed(triples, scales, triples_out):
    for i in range(triples.shape[0]):
        for k in range(3):
            triples_out[i, k] = triples[i, k] - scales[k]


@njit
def cluster_sums(triples, labels, centres):
    for i in range(triples.shape[0]):
        for k in range(triples.shape[1]):
            centres[labels[i], k] += triples[i, k]  # hot


@njit
def cluster_sums_changed(triples, labels, centres):
    for i in range(triples.shape[0]):
        for k in range(3):
            centres[labels[i], k] += triples[i, k]


@njit(parallel=True)
def counted_by_workers(x, two_counts):
    size = len(x) // len(two_counts)
    for worker in prange(len(two_counts)):
        for i in range(worker * size, (worker + 1) * size):
            if x[i] > 50_000:
                two_counts[worker] += 1  # hot


@njit(parallel=True)
def counted_by_workers_changed(x, two_counts):
    size = len(x) // len(two_counts)
    for worker in prange(len(two_counts)):
        n = 0
        for i in range(worker * size, (worker + 1) * size):
            if x[i] > 50_000:
                n += 1
        two_counts[worker] += n


@njit
def rows_by_index(m, rows_of_m, grid):
    for i in range(len(rows_of_m)):
        for j in range(m.shape[1]):
            grid[i, j] = m[rows_of_m[i], j] * 0.5  # hot


@njit
def rows_by_index_changed(m, rows_of_m, grid):
    for i in range(len(rows_of_m)):
        k = rows_of_m[i]
        for j in range(m.shape[1]):
            grid[i, j] = m[k, j] * 0.5


@njit
def columns_by_index(m, rows_of_m, grid):
    for i in range(len(rows_of_m)):
        for j in range(m.shape[0]):
            grid[j, i] = m[j, rows_of_m[i]] * 0.5  # hot


@njit
def columns_by_index_changed(m, rows_of_m, grid):
    for i in range(len(rows_of_m)):
        k = rows_of_m[i]
        for j in range(m.shape[0]):
            grid[j, i] = m[j, k] * 0.5


@njit
def running_rows(m, rows_of_m, grid):
    for i in range(len(rows_of_m)):
        s = 0.0
        for j in range(m.shape[1]):
            s += m[rows_of_m[i], j]
            grid[i, j] = s  # hot


@njit
def sums_by_label(hundreds, groups, group_sums):
    for i in range(hundreds.shape[0]):
        for j in range(hundreds.shape[1]):
            group_sums[groups[i], j] += hundreds[i, j]  # hot


@njit
def sums_by_label_changed(hundreds, groups, group_sums):
    for i in range(hundreds.shape[0]):
        sums = group_sums[groups[i]]
        for j in range(hundreds.shape[1]):
            sums[j] += hundreds[i, j]


@njit
def counts_by_label(bits, groups, group_counts):
    for i in range(bits.shape[0]):
        for j in range(bits.shape[1]):
            group_counts[groups[i], j] += bits[i, j]  # hot


@njit
def counts_by_label_changed(bits, groups, group_counts):
    for i in range(bits.shape[0]):
        counts = group_counts[groups[i]]
        for j in range(bits.shape[1]):
            counts[j] += bits[i, j]


@njit
def knapsack(best, weights, gains):
    for i in range(len(weights)):
        for j in range(len(best) - 1, weights[i] - 1, -1):
            best[j] = max(best[j], best[j - weights[i]] + gains[i])  # hot


@njit
def knapsack_changed(best, weights, gains):
    for i in range(len(weights)):
        weight, gain = weights[i], gains[i]
        for j in range(len(best) - 1, weight - 1, -1):
            best[j] = max(best[j], best[j - weight] + gain)


@njit
def scaled_by_element(a, one, out):
    for i in range(len(a)):
        out[i] = a[i] * one[0]  # hot


@njit
def minus_multiples(m, norms):
    for i in range(1, m.shape[0]):
        for j in range(m.shape[1]):
            m[i, j] -= m[0, 0] * norms[j] * 1e-9  # hot


@njit
def minus_multiples_changed(m, norms):
    x = m[0, 0]
    for i in range(1, m.shape[0]):
        for j in range(m.shape[1]):
            m[i, j] -= x * norms[j] * 1e-9


@njit
def by_first(plate, norms):
    for i in range(plate.shape[0]):
        for j in range(1, plate.shape[1]):
            plate[i, j] = (norms[j] - 1e-9 * plate[i, j]) / plate[i, 0]  # hot


@njit(error_model="numpy")
def by_first_changed(plate, norms):
    for i in range(plate.shape[0]):
        x = plate[i, 0]
        for j in range(1, plate.shape[1]):
            plate[i, j] = (norms[j] - 1e-9 * plate[i, j]) / x


@njit
def inverted(pixels, pixels_out):
    for j in range(pixels.shape[1]):
        for i in range(pixels.shape[0]):
            pixels_out[i, j] = 255 - pixels[i, j]  # hot


@njit
def inverted_changed(pixels, pixels_out):
    for i in range(pixels.shape[0]):
        for j in range(pixels.shape[1]):
            pixels_out[i, j] = 255 - pixels[i, j]


@njit
def neighbours(states, states_out):
    for i in range(1, states.shape[0] - 1):
        for k in range(1, states.shape[2] - 1):
            for j in range(1, states.shape[1] - 1):
                states_out[i, j, k] = (  # hot
                    states[i - 1, j, k] + states[i + 1, j, k] + states[i, j - 1, k] + states[i, j + 1, k]
                    + states[i, j, k - 1] + states[i, j, k + 1]
                )  # fmt: skip


@njit
def neighbours_changed(states, states_out):
    for i in range(1, states.shape[0] - 1):
        for j in range(1, states.shape[1] - 1):
            for k in range(1, states.shape[2] - 1):
                states_out[i, j, k] = (
                    states[i - 1, j, k] + states[i + 1, j, k] + states[i, j - 1, k] + states[i, j + 1, k]
                    + states[i, j, k - 1] + states[i, j, k + 1]
                )  # fmt: skip


@njit
def column_counts(tallies, column_tallies):
    for j in range(tallies.shape[1]):
        n = 0
        for i in range(tallies.shape[0]):
            n += tallies[i, j]  # hot
        column_tallies[j] = n


@njit
def column_counts_changed(tallies, column_tallies):
    column_tallies[:] = 0
    for i in range(tallies.shape[0]):
        for j in range(tallies.shape[1]):
            column_tallies[j] += tallies[i, j]


@njit
def median_of_blocks(small, square_of_medians):
    for i in range(1, small.shape[0] - 1):
        for j in range(1, small.shape[1] - 1):
            square_of_medians[i, j] = np.median(small[i - 1 : i + 2, j - 1 : j + 2])  # hot


@njit
def median_of_blocks_changed(small, square_of_medians):
    values = np.empty(9)
    for i in range(1, small.shape[0] - 1):
        for j in range(1, small.shape[1] - 1):
            for n in range(9):
                value, k = small[i - 1 + n // 3, j - 1 + n % 3], n
                while k > 0 and values[k - 1] > value:
                    values[k] = values[k - 1]
                    k -= 1
                values[k] = value
            square_of_medians[i, j] = values[4]


@njit
def chosen_and_scaled(a, index, one, out):
    for i in range(len(index)):
        out[i] = a[index[i]] * one[0]  # hot


@njit
def shortest_paths(distances):
    for k in range(len(distances)):
        for i in range(len(distances)):
            for j in range(len(distances)):
                distances[i, j] = min(distances[i, j], distances[i, k] + distances[k, j])  # hot


@njit
def shortest_paths_changed(distances):
    for k in range(len(distances)):
        row = distances[k].copy()
        for i in range(len(distances)):
            x = distances[i, k]
            for j in range(len(distances)):
                distances[i, j] = min(distances[i, j], x + row[j])


@njit
def eliminated(distances):
    for k in range(len(distances)):
        for i in range(len(distances)):
            for j in range(len(distances)):
                distances[i, j] -= distances[i, k] * distances[k, j] * 1e-9  # hot


@njit
def eliminated_changed(distances):
    for k in range(len(distances)):
        row = distances[k].copy()
        for i in range(len(distances)):
            x = distances[i, k] * 1e-9
            for j in range(len(distances)):
                distances[i, j] -= x * row[j]


@njit
def long_polynomial(near, short, near_out):
    for i in range(len(near)):
        s = 0.0
        for k in range(len(short)):
            s = s * near[i] + short[k]  # hot
        near_out[i] = s


@njit
def long_polynomial_changed(near, short, near_out):
    near_out[:] = 0.0
    for k in range(len(short)):
        c = short[k]
        for i in range(len(near)):
            near_out[i] = near_out[i] * near[i] + c


@njit
def reversed_polynomial(near, short, near_out):
    for i in range(len(near)):
        s = 0.0
        for k in range(len(short) - 1, -1, -1):
            s = s * near[i] + short[k]  # hot
        near_out[i] = s


@njit
def reversed_polynomial_changed(near, short, near_out):
    near_out[:] = 0.0
    for k in range(len(short) - 1, -1, -1):
        c = short[k]
        for i in range(len(near)):
            near_out[i] = near_out[i] * near[i] + c


@njit
def logistic_maps(near, divisor, near_out):
    for i in range(len(near)):
        x = near[i] - 0.5
        for _ in range(divisor * 10):
            x = 3.7 * x * (1.0 - x)  # hot
        near_out[i] = x


@njit
def logistic_maps_changed(near, divisor, near_out):
    for i in range(len(near)):
        near_out[i] = near[i] - 0.5
    for _ in range(divisor * 10):
        for i in range(len(near)):
            near_out[i] = 3.7 * near_out[i] * (1.0 - near_out[i])


@njit
def decayed(near, few_coefficients, near_out):
    s = 0.0
    for i in range(len(near)):
        for k in range(len(few_coefficients)):
            s = s * 0.5 + few_coefficients[k]  # hot
        near_out[i] = s


@njit
def decayed_changed(near, few_coefficients, near_out):
    s = 0.0
    for i in range(len(near)):
        for k in range(6):
            s = s * 0.5 + few_coefficients[k]
        near_out[i] = s


@njit
def descent(short, near_out):
    x = 0.3
    for i in range(len(near_out)):
        s = 0.0
        for k in range(len(short)):
            s = s * x + short[k]  # hot
        x -= 0.001 * s
        near_out[i] = x


@njit
def filtered_rows(hundreds, counters):
    for i in range(hundreds.shape[0]):
        s = 0.0
        for k in range(hundreds.shape[1]):
            s = s * 0.5 + hundreds[i, k]  # hot
        counters[i] = int(s)


@njit
def heat(cube, cube_out):
    for i in range(1, cube.shape[0] - 1):
        for k in range(1, cube.shape[2] - 1):
            for j in range(1, cube.shape[1] - 1):
                cube_out[i, j, k] = cube[i, j, k] + 0.1 * (  # hot
                    cube[i - 1, j, k] + cube[i + 1, j, k] + cube[i, j - 1, k] + cube[i, j + 1, k]
                    + cube[i, j, k - 1] + cube[i, j, k + 1] - 6.0 * cube[i, j, k]
                )  # fmt: skip


@njit
def heat_changed(cube, cube_out):
    for i in range(1, cube.shape[0] - 1):
        for j in range(1, cube.shape[1] - 1):
            for k in range(1, cube.shape[2] - 1):
                cube_out[i, j, k] = cube[i, j, k] + 0.1 * (
                    cube[i - 1, j, k] + cube[i + 1, j, k] + cube[i, j - 1, k] + cube[i, j + 1, k]
                    + cube[i, j, k - 1] + cube[i, j, k + 1] - 6.0 * cube[i, j, k]
                )  # fmt: skip


@njit
def lengths_of_points(triples, sums):
    for i in range(triples.shape[0]):
        sums[i] = triples[i, 0] * triples[i, 0] + triples[i, 1] * triples[i, 1] + triples[i, 2] * triples[i, 2]  # hot


@njit
def lengths_of_points_changed(coordinates, sums):
    for i in range(coordinates.shape[1]):
        x, y, z = coordinates[0, i], coordinates[1, i], coordinates[2, i]
        sums[i] = x * x + y * y + z * z


@njit
def growth(a):
    p = 1.0
    for i in range(len(a)):
        p *= a[i]  # hot
    return p


growth_changed = njit(fastmath={"reassoc"})(growth.py_func)


@njit(error_model="numpy")
def drawn_points(small_number, divisor):
    inside = 0
    x = divisor
    for i in range(small_number):
        x = (x * 1103515245 + 12345) & 0x7FFFFFFF
        y = (x * 1103515245 + 12345) & 0x7FFFFFFF
        if (x / 2147483647.0) ** 2 + (y / 2147483647.0) ** 2 < 1:  # hot
            inside += 1
        x = y
    return inside


drawn_points_changed = njit(error_model="numpy", fastmath={"arcp"})(drawn_points.py_func)


@njit
def near_pairs(present_points, near, start):
    count = 0
    for i in range(len(near)):
        for j in range(len(near)):
            if present_points[j]:
                difference = near[i] - near[j]
                if difference * difference < start:  # hot
                    count += 1
    return count


@njit
def near_pairs_changed(present_points, near, start):
    count = 0
    for i in range(len(near)):
        own = near[i]
        for j in range(len(near)):
            if present_points[j]:
                difference = own - near[j]
                if difference * difference < start:
                    count += 1
    return count


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
    "rows_by_index": "repeated-load",
}
#: Expected rules of the kernels below the line.
MORE = {
    "counted_while": "fp-order",
    "row_sums": "fp-order",
    "into_element": "fp-order",
    "total32": "fp-order",
    "total3d": "fp-order",
    "complex_sum": "fp-order",
    "variance": "fp-order",
    "parallel_sum": "fp-order",
    "numpy_sum": "fp-order",
    "stencil5": "-",
    "branched": "-",
    "called": "-",
    "truncated": "-",
    "shifted": "-",
    "complex_product": "-",
    "parallel_roots": "-",
    "scaled_checked": "-",
    "by_scalar": "invariant-divisor",
    "normalised": "division-check",
    "matmul": "strided-sum",
    "relaxed": "recurrence",
    "counts": "-",
    "weighted_counts": "gather",
    "logistic": "recurrence",
    "horner": "recurrence",
    "mandelbrot": "-",
    "largest_call": "maximum",
    "place_of_largest": "-",
    "place_and_largest": "-",
    "nearest": "maximum",
    "range_of": "maximum",
    "chosen_int": "-",
    "chosen_checked": "-",
    "powers": "math-call",
    "softplus": "math-call",
    "widened_sum": "float-widening",
    "found": "early-exit",
    "bisected": "-",
    "by_four": "-",
    "stepped": "-",
    "zipped": "zip",
    "zipped_sum": "zip",
    "enumerated": "stride",
    "scaled_view": "stride",
    "by_column": "stride",
    "column_sums": "strided-sum",
    "transposed": "-",
    "row_expressions": "allocation, fp-order",
    "masked": "allocation",
    "small_products": "row-product",
    "small_solutions": "small-matrix",
    "random_one": "-",
    "random_normal": "-",
    "letters": "string-characters",
    "words": "-",
    "of_records": "-",
    "sum_of_records": "fp-order",
    "of_tuples": "-",
    "of_typed_list": "reference-count",
    "of_list": "fp-order",
    "of_array_list": "reference-count",
    "of_set": "typed-dict",
    "counted_words": "typed-dict",
    "python_called": "object-mode",
    "shared_line": "fp-order",
    "row_means": "strided-sum",
    "blended": "-",
    "numba_stencil": "no loop",
    "insertion_sorted": "-",
    "collatz": "-",
    "greatest_divisors": "-",
    "short_sums": "few-rounds",
    "sums_of_eight": "few-rounds",
    "sums_of_twelve": "few-rounds",
    "sums_of_many": "fp-order",
    "strided_dot": "strided-sum",
    "sum_by_column": "strided-sum",
    "sum_of_first": "strided-sum",
    "fibonacci": "recurrence",
    "alternating": "recurrence",
    "moving_average": "recurrence",
    "gathered_sum": "gather",
    "gathered_sum_of_many": "gather",
    "by_scalar32": "-",
    "remainder7": "integer-division",
    "ring": "integer-division",
    "appended_if": "list-growth",
    "sum_if": "conditional-sum",
    "sum_of_both": "conditional-sum",
    "masked_row_means": "conditional-sum",
    "of_lists": "fp-order",
    "lagged": "wraparound",
    "float_remainder": "float-remainder",
    "floored": "float-remainder",
    "typed_appended": "list-growth",
    "array_appended": "allocation",
    "row_norms": "row-product",
    "long_row_norms": "row-product",
    "long_row_products": "-",
    "outer_products": "row-product",
    "joined_rows": "allocation",
    "joined_long": "-",
    "counted_texts": "typed-dict",
    "polygon_area": "fp-order",
    "causal_filter": "-",
    "shares": "division-check",
    "checked_gather": "exception-exit",
    "streamed": "gather",
    "where_sums": "allocation",
    "into_attribute": "fp-order",
    "sum_of_ratios": "division-check",
    "lagged_sum": "fp-order",
    "magnitudes": "hypot",
    "row_products": "row-product",
    "letters_equal": "string-characters",
    "joined": "string-join",
    "integer_powers": "integer-power",
    "of_tuple": "tuple-index",
    "small_parallel": "-",
    "periodic": "strided-sum",
    "repeated": "-",
    "energy": "strided-sum",
    "row_crosses": "row-product",
    "characters": "string-characters",
    "integer_polynomial": "integer-power",
    "lengths_as_text": "allocation",
    "column_sum_if": "strided-sum",
    "swept": "-",
    "polynomial": "few-rounds",
    "square_roots": "few-rounds",
    "running_columns": "recurrence",
    "decaying_columns": "recurrence",
    "reservoirs": "recurrence",
    "list_decayed": "reference-count",
    "unit_vectors": "invariant-divisor",
    "counted_members": "typed-dict",
    "counted_in_memory": "sum-in-memory",
    "counts_of_rows": "sum-in-memory",
    "summed_in_memory": "-",
    "smoothed": "-",
    "brightness": "invariant-divisor",
    "pair_energy": "division-check",
    "updated_columns": "recurrence",
    "row_deviations": "row-product",
    "classes": "branched-counts",
    "escape_times": "hypot",
    "cut_off_energy": "conditional-sum",
    "cut_off_points": "conditional-sum",
    "cut_off_lengths": "conditional-sum",
    "integer_classes": "branched-counts",
    "counted_bases": "branched-counts",
    "is_ascending": "early-exit",
    "has_negative": "early-exit",
    "sorted_triples": "short-sort",
    "short_medians": "short-sort",
    "lengths_by_step": "strided-sum",
    "two_powers": "math-call",
    "roots_by_newton": "division-check",
    "interpolated": "interpolation",
    "determinants": "small-matrix",
    "inverses": "small-matrix",
    "large_solutions": "-",
    "moved": "attribute-array",
    "scaled_attribute": "attribute-array",
    "ends_of_arrays": "gather",
    "backwards_dot": "strided-sum",
    "mirrored": "-",
    "nested_lists": "reference-count",
    "minus_multiples": "repeated-load",
    "by_first": "division-check",
    "inverted": "stride",
    "neighbours": "stride",
    "column_counts": "stride",
    "median_of_blocks": "short-sort",
    "complemented": "-",
    "signed_sum": "fp-order",
    "moment": "fp-order",
    "block_sums": "fp-order",
    "sum_of_large32": "conditional-sum",
    "impedances": "complex-division",
    "weighted_phasors": "complex-division",
    "phasors": "invariant-divisor",
    "days": "-",
    "inverse_lengths": "division-check",
    "potential_at_origin": "division-check",
    "ratios_of_three": "division-check",
    "moved_points": "few-rounds",
    "cluster_sums": "few-rounds",
    "counted_by_workers": "sum-in-memory",
    "columns_by_index": "gather",
    "running_rows": "recurrence",
    "sums_by_label": "repeated-load",
    "counts_by_label": "repeated-load",
    "knapsack": "repeated-load",
    "scaled_by_element": "-",
    "chosen_and_scaled": "gather",
    "shortest_paths": "repeated-load",
    "eliminated": "repeated-load",
    "long_polynomial": "recurrence",
    "reversed_polynomial": "recurrence",
    "logistic_maps": "recurrence",
    "decayed": "recurrence",
    "descent": "recurrence",
    "filtered_rows": "recurrence",
    "heat": "stride",
    "lengths_of_points": "stride",
    "growth": "fp-order",
    "near_pairs": "-",
    "drawn_points": "invariant-divisor",
}
ALL = {**RULES, **MORE}
with open(__file__, encoding="utf-8") as file:
    SOURCE = file.read().splitlines()
FUNCTIONS = {node.name: node for node in ast.parse("\n".join(SOURCE)).body if isinstance(node, ast.FunctionDef)}
# #: Rules that differ from `RULES`, by Numba release, or by release and processor, because each generates different
# code.
EXCEPTIONS = {
    # LLVM 14 emits an addition of 0.0 that the kernel does not contain, so fastmath={"reassoc"} alone is 9.5 times
    # faster.
    "0.57.1": {
        "present": "fp-order", "enumerated": "-", "of_list": "exception-exit", "classes": "-",
        "block_sums": "strided-sum", "sum_of_large32": "fp-order", "cluster_sums": "gather",
        "days": "invariant-divisor", "knapsack": "-", "polygon_area": "integer-division", "drawn_points": "-",
    },
    "0.61.2": {
        "present": "fp-order", "enumerated": "-", "of_list": "-", "is_ascending": "-", "counted_bases": "no loop",
        "reservoirs": "-", "block_sums": "strided-sum", "sum_of_large32": "fp-order", "cluster_sums": "gather",
        "days": "invariant-divisor", "polygon_area": "integer-division", "drawn_points": "-",
    },
    # LLVM 20 emits calls of numba_sqrt.
    "0.63.1": {
        "chosen": "-", "enumerated": "-", "lagged_sum": "strided-sum", "inverse_lengths": "-", "knapsack": "gather",
    },
    # Only the loop over the rows has enough samples for advice. LLVM 22 stores by a mask of AVX2, which AMD's processors
    # do as slowly as one value at a time.
    "0.68.1": {"row_expressions": "allocation", "shortest_paths": "stride"},
    # Without AVX, divisions of float32 are narrow, LLVM keeps branches that add to a sum, and several divisions or
    # square roots take as long as one at a time.
    "0.68.1 nehalem": {
        "by_scalar32": "invariant-divisor", "sum_of_both": "-", "cut_off_energy": "-", "cut_off_points": "-",
        "cut_off_lengths": "-", "inverse_lengths": "-", "potential_at_origin": "-",
        "days": "invariant-divisor", "cluster_sums": "gather",
        "shortest_paths": "repeated-load",
    },
    # This processor has gather and scatter instructions for strides other than 1.
    "0.68.1 skylake-avx512": {
        "classes": "-", "integer_classes": "-", "mirrored": "gather",
        "block_sums": "strided-sum", "days": "invariant-divisor", "shortest_paths": "repeated-load",
        "near_pairs": "gather", "drawn_points": "-",
    },
}


@jitclass([("sum", float64)])
class Tally:
    def __init__(self):
        self.sum = 0.0


@jitclass([("x", float64[::1]), ("v", float64[::1]), ("step", float64)])
class Particles:
    def __init__(self):
        self.x = np.zeros(20_000)
        self.v = np.ones(20_000)
        self.step = 0.01


def make_dict():
    d = Dict.empty(types.int64, types.float64)
    for key in range(1000):
        d[key] = 0.5 * key
    return d


def make_text_counts():
    d = Dict.empty(types.unicode_type, types.int64)
    for first, second, third in itertools.product("abn", repeat=3):
        d[first + second + third] = 0
    return d


def arguments():
    """Returns the arguments by parameter name. Values that must be compiled first are callables that create them."""
    random = np.random.default_rng(0)
    a, x, m = random.random(N) + 0.5, random.integers(1, 100_000, N), random.random((512, 512)) + 0.5
    records = np.zeros(N, dtype=[("x", np.float64), ("y", np.float64)])
    return {
        "a": a, "b": random.random(N) + 0.5, "out": np.zeros(N), "a32": a.astype(np.float32),
        "out32": np.zeros(N, np.float32), "x": x, "ints": np.zeros(N, np.int64), "index": random.integers(0, N, N),
        "keys": x % 1000, "d": make_dict, "divisor": 7, "power": 256, "c": 3.0, "step": 2, "wanted": -1, "start": 0.5,
        "small_number": 2000, "gaps": np.where(a < 0.6, np.nan, a), "line": a.copy(), "one": np.zeros(1),
        "partial": np.zeros(2), "z": a + 1j * a, "z_out": np.zeros(N, complex), "points": (a - 1.0) + 0.5j * (a - 1.0),
        "m": m, "grid": np.zeros((512, 512)), "plate": m.copy(), "norms": random.random(512) + 0.5,
        "cube": random.random((32, 32, 32)), "small": m[:128, :128].copy(), "small_too": m[128:256, :128].copy(),
        "product": np.zeros((128, 128)), "view": random.random((256, 512))[:, ::2],
        "view_out": np.zeros((256, 512))[:, ::2], "quads": random.random((5000, 4)), "quads_out": np.zeros((5000, 4)),
        "rows": random.random((1000, 16)), "counters": np.zeros(N, np.int64), "sums": np.zeros(N),
        "few": a[:200].copy(), "near": a[:2000].copy(), "ordered": np.sort(a),
        "matrices": random.random((500, 4, 4)) + 4.0 * np.eye(4), "right": np.ones(4), "records": records,
        "text": "banana" * 2000, "parts": lambda: List(["banana"] * 500), "items": lambda: List(a.tolist()),
        "arrays": lambda: List([a[:100]] * 100), "large": random.random(1 << 20) + 0.5, "large_out": np.zeros(1 << 20),
        "square": np.zeros((16, 16)), "few_rows": random.random((400, 3)),
        "text_counts": make_text_counts, "group_sizes": random.integers(1, 9, N), "near_out": np.zeros(2000),
        "distributions": random.random((60, 60, 9)), "moved_distributions": np.zeros((60, 60, 9)),
        "x_steps": np.array([0, 1, 0, -1, 0, 1, -1, -1, 1]), "y_steps": np.array([0, 0, 1, 0, -1, 1, 1, -1, -1]),
        "table": np.arange(1000) * 0.5, "block": random.random((256, 256)), "block_out": np.zeros((256, 256)),
        "triples": random.random((6000, 3)), "eights": random.random((2500, 8)), "eight": random.random(8),
        "twelves": random.random((1500, 12)), "hundreds": random.random((200, 100)), "window": random.random(40_000),
        "short": random.random(64), "wide_step": 512, "places": random.permutation(1 << 20)[:N], "c32": np.float32(3.0),
        "lag": 3, "exponent": 3, "triples_out": np.zeros((6000, 3)),
        "bodies": np.ones(6000, dtype=[(name, np.float64) for name in ("mass", "u", "v", "x", "y", "z")]),
        "tally": Tally, "codes": np.frombuffer(b"banana" * 2000, np.uint8), "eight_values": (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0),
        "eighths": random.integers(0, 8, N), "few_out": np.zeros(200),
        "few_coefficients": random.random(6), "five": 5, "values": np.zeros(12_000), "hundred_points": random.random((100, 3)) * 5,
        "x_near": random.random(1000) * 4, "y_near": random.random(1000) * 4, "z_near": random.random(1000) * 4,
        "thousand_points": random.random((1000, 3)) * 4,
        "bases": np.frombuffer(b"ACGT", np.uint8)[random.integers(0, 4, N)], "times": 10, "backwards": np.sort(a[:200])[::-1].copy(), "means": np.zeros(512), "grid_too": m.copy(), "small_factor": 1e-3,
        "ordered_few": np.sort(a[:200]), "few_heights": random.random(200), "threes": random.random((1000, 3, 3)) + 2.0 * np.eye(3),
        "threes_out": np.zeros((1000, 3, 3)), "forties": random.random((10, 40, 40)) + 40.0 * np.eye(40), "forty": np.ones(40), "particles": Particles,
        "z_too": random.normal(size=N) + 1j * random.normal(size=N), "twenty": np.zeros(20), "scales": np.full(3, 0.3),
        "labels": random.integers(0, 8, 6000), "centres": np.zeros((8, 3)), "two_counts": np.zeros(2, np.int64),
        "many_arrays": lambda: List([a[i : i + 100].copy() for i in range(200)]),
        "nested": lambda: List([List([0.5] * 20) for _ in range(50)]), "codes_out": np.zeros(N, np.uint8),
        "present_cells": random.random((512, 512)) < 0.99, "present_points": np.arange(2000) % 10 < 7,
        "rows_of_m": random.integers(0, 512, 512),
        "fives": random.random((2000, 5)), "few_medians": np.zeros(2000), "groups": random.integers(0, 8, 200),
        "group_sums": np.zeros((8, 100)), "bits": random.integers(0, 2, (200, 100)),
        "group_counts": np.zeros((8, 100), np.int64), "best": np.zeros(5001), "weights": random.integers(10, 300, 40),
        "gains": random.random(40), "distances": random.random((150, 150)), "cube_out": np.zeros((32, 32, 32)),
        "coordinates": random.random((3, 6000)), "square_of_medians": np.zeros((128, 128)),
        "pixels": random.integers(0, 256, (512, 512)).astype(np.uint8), "pixels_out": np.zeros((512, 512), np.uint8),
        "states": random.integers(0, 2, (64, 64, 64)), "states_out": np.zeros((64, 64, 64), np.int64),
        "tallies": random.integers(0, 9, (512, 512)), "column_tallies": np.zeros(512, np.int64),
    }


def kernel_arguments(name):
    """Returns the arguments of a kernel."""
    values_by_name = arguments()
    values = [values_by_name[parameter.arg] for parameter in FUNCTIONS[name].args.args]
    return [value() if callable(value) else value for value in values]


def expected_rule(name):
    release_and_processor = f"{__version__} {os.environ.get('NUMBA_CPU_NAME')}"
    return {**EXCEPTIONS.get(__version__, {}), **EXCEPTIONS.get(release_and_processor, {})}.get(name, ALL[name])


def find_lines(name):
    """Returns the hot, first and last line of a kernel."""
    node = FUNCTIONS[name]
    lines = range(min([node.lineno] + [decorator.lineno for decorator in node.decorator_list]), node.end_lineno + 1)
    return next(number for number in lines if SOURCE[number - 1].endswith("# hot")), lines[0], lines[-1]


def run(seconds, names):
    for name in names:
        kernel, values = globals()[name], kernel_arguments(name)
        kernel(*values)
        deadline = time.process_time() + seconds
        while time.process_time() < deadline:
            kernel(*values)


def measure_seconds(kernel, values, repetitions):
    # Threads of parallel kernels wait for each other.
    is_parallel = getattr(kernel, "targetoptions", {}).get("parallel") and get_num_threads() > 1
    clock = time.perf_counter if is_parallel else time.thread_time
    started = clock()
    for _ in range(repetitions):
        kernel(*values)
    return max(clock() - started, 1e-9)


def find_change(name):
    """Returns the name of the changed kernel. The change depends on the rule if releases of Numba get several."""
    changes = (f"{name}_changed_for_{expected_rule(name).replace('-', '_')}", f"{name}_changed")
    return next((change for change in changes if change in globals()), None)


def compare(names):
    """Measures both variants alternately, for a few milliseconds each."""
    for name in names:
        change = find_change(name)
        if change is None:
            continue
        slow, changed = globals()[name], globals()[change]
        values, changed_values = kernel_arguments(name), kernel_arguments(change if change in FUNCTIONS else name)
        slow(*values), changed(*changed_values)
        repetitions = max(1, int(0.004 / measure_seconds(slow, values, 1)))
        pairs = [
            (measure_seconds(slow, values, repetitions), measure_seconds(changed, changed_values, repetitions))
            for _ in range(30)
        ][1:]
        ratio = statistics.median(pair[0] / pair[1] for pair in pairs)
        print(name, f"{ratio:.3g}", sep="\t", flush=True)


def main(command, *arguments):
    names = {"quick": RULES, "all": ALL}.get(
        arguments[-1] if arguments else "all", arguments[1 if command == "run" else 0 :]
    )
    if command == "run":
        run(float(arguments[0]), names)
    elif command == "compare":
        compare(names)
    else:
        for name in names:
            print(name, *find_lines(name), expected_rule(name), sep="\t")


if __name__ == "__main__":
    main(*sys.argv[1:])
