"""Pipelines that Halide compiles and runs: pipelines.py COUNT

Each pipeline is a separate object, linked with JITLink. Prints a sum and "running", waits for a line on standard input,
and then frees the pipelines.
"""

import sys

import halide as hl

x, y = hl.Var("x"), hl.Var("y")
pipelines = []
total = 0
for number in range(int(sys.argv[1])):
    blurred = hl.Func(f"blurred{number}")
    blurred[x, y] = hl.cast(hl.Int(32), (x * 3 + y * (5 + number)) % (7 + number))
    out = hl.Func(f"pipeline{number}")
    out[x, y] = blurred[x - 1, y] + blurred[x, y] * 2 + blurred[x + 1, y]
    blurred.compute_root()
    result = out.realize([64, 64])
    total += sum(result[i, i] for i in range(64))
    pipelines.append(out)
print(total)
print("running", flush=True)
sys.stdin.readline()
del pipelines, out, blurred, result
print("dropped", flush=True)
sys.stdin.readline()
