"""prange on four threads: parallel.py SECONDS"""

import os
import sys
import time

os.environ["NUMBA_NUM_THREADS"] = "4"
os.environ.setdefault("NUMBA_THREADING_LAYER", "workqueue")

import numpy as np
from numba import njit, prange


@njit(parallel=True)
def waves(out, n):
    for i in prange(out.size):
        x = out[i]
        for _ in range(n):
            x = x * 0.999 + 1.0 / (x * x + 1.0)
        out[i] = x
    return out.sum()


print(waves(np.arange(64.0), 10))
deadline = time.process_time() + float(sys.argv[1])
while time.process_time() < deadline:
    waves(np.arange(64.0), 100_000)
print(waves(np.arange(64.0), 10))
