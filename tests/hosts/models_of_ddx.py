"""Three models that ddx compiles, with an LLVM 20 that has neither symbols nor RTTI: python models_of_ddx.py TURNS.
Prints their sums."""

import sys

import ddx
import numpy as np


def model(power):
    def terms():
        x, y = ddx.var("x"), ddx.var("y")
        total = 0.0
        for k in range(1, 8):
            total = total + ddx.exp(-x * k * 0.1) * ddx.sin(y * k + power) + (x * y) ** power
        return total

    return terms


points = np.random.default_rng(1).random((2, 20000))
for power in (1, 2, 3):
    compiled = ddx.equation(model(power)).compile(points=20000)
    print(round(sum(float(compiled.jacobian(points)[0].sum()) for _ in range(int(sys.argv[1]))), 6))
