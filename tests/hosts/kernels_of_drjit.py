"""Two kernels that drjit compiles and caches in ~/.drjit: python kernels_of_drjit.py. Prints their sums."""

import drjit
from drjit.llvm import Float

x = drjit.arange(Float, 100000) / 1000
for factor in (1, 2):
    print(round(float(drjit.sum(drjit.sin(x * factor) * drjit.cos(x))[0]), 3))
