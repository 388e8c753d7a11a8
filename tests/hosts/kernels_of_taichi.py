"""Two kernels that Taichi compiles and runs: kernels_of_taichi.py [SECONDS]

Prints a deterministic sum.
"""

import sys
import time

import taichi as ti

ti.init(arch=ti.cpu, offline_cache=False, log_level=ti.ERROR, random_seed=1, cpu_max_num_threads=1)
numbers = ti.field(ti.f32, shape=4096)


@ti.kernel
def fill_with_steps():
    for i in numbers:
        numbers[i] = (i * 7) % 11


@ti.kernel
def sum_of_squares() -> ti.f32:
    total = 0.0
    for i in range(4096):
        total += numbers[i] * numbers[i]
    return total


fill_with_steps()
print("sum", sum_of_squares())
end = time.monotonic() + float(sys.argv[1] if len(sys.argv) > 1 else 0)
while time.monotonic() < end:
    sum_of_squares()
