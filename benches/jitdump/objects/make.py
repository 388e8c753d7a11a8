"""Writes the objects that the benchmark loads, as Numba 0.68.1 compiles them under libjitlisten.so: make.py DIRECTORY

with_dwarf.o     a kernel with two loops, compiled with debug=True
without_dwarf.o  the same kernel, compiled with Numba's defaults

The preloaded library gives every function a frame pointer and an entry in .eh_frame.
"""

import linecache
import os
import sys

from numba import njit

FILE = "/home/user/project/kernels.py"
SOURCE = """def smooth(values, weights, rounds):
    total = 0.0
    for _ in range(rounds):
        for i in range(1, values.size - 1):
            left = values[i - 1] * weights[0]
            right = values[i + 1] * weights[2]
            values[i] = left + values[i] * weights[1] + right
        total += values[rounds % values.size]
    for i in range(values.size):
        if values[i] < 0.0:
            values[i] = -values[i]
        total += values[i] / (1.0 + values[i])
    return total
"""

linecache.cache[FILE] = (len(SOURCE), None, SOURCE.splitlines(True), FILE)
scope = {"__name__": "kernels"}
exec(compile(SOURCE, FILE, "exec"), scope)
for name, debug in (("with_dwarf", True), ("without_dwarf", False)):
    function = njit("float64(float64[::1], float64[::1], int64)", debug=debug)(scope["smooth"])
    library = function.overloads[function.signatures[0]].library
    with open(os.path.join(sys.argv[1], name + ".o"), "wb") as file:
        file.write(library._compiled_object)
