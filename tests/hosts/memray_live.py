"""Reads the live stream of `memray run --native --live-remote` on allocates.py. Waits until its five arrays are
allocated. Prints the number of arrays, and how many of their stacks contain the compiled function's name."""

import sys
import time

from memray import SocketReader

KEPT_ARRAYS = 5


def connect(port):
    """Connects to the program, which opens its port some time after it has started."""
    deadline = time.monotonic() + 90
    while True:
        try:
            return SocketReader(port=port).__enter__()
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def arrays(reader):
    records = reader.get_current_snapshot(merge_threads=False)
    return [record for record in records if 8_000_000 <= record.size / record.n_allocations < 8_002_000]


def is_named(record):
    names = [function for function, *_ in record.hybrid_stack_trace()]
    return any("__main__" in name and "make" in name and "cpython" not in name for name in names)


reader = connect(int(sys.argv[1]))
deadline = time.monotonic() + 90
while sum(record.n_allocations for record in arrays(reader)) != KEPT_ARRAYS and time.monotonic() < deadline:
    time.sleep(0.2)
kept_records = arrays(reader)
print(
    sum(record.n_allocations for record in kept_records),
    sum(record.n_allocations for record in kept_records if is_named(record)),
    flush=True,
)
reader.__exit__(None, None, None)
