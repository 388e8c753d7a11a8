"""Two kernels that drjit compiles and keeps in ~/.drjit: python kernels_of_drjit.py. Prints sums."""

import drjit
from drjit.llvm import Float

x = drjit.arange(Float, 100000) / 1000
for turn in (1, 2):
    print(round(float(drjit.sum(drjit.sin(x * turn) * drjit.cos(x))[0]), 3))
