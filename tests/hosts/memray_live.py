"""What `memray run --native --live-remote` sends while allocates.py runs: waits until its five arrays are alive, and
prints how many there are and how many of them were allocated in stacks with the compiled function's name."""

import sys
import time

from memray import SocketReader

KEPT = 5


def connected(port):
    """The program listens some time after it was started."""
    end = time.monotonic() + 90
    while True:
        try:
            return SocketReader(port=port).__enter__()
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def arrays(reader):
    records = reader.get_current_snapshot(merge_threads=False)
    return [record for record in records if 8_000_000 <= record.size / record.n_allocations < 8_002_000]


def is_named(record):
    names = [function for function, *_ in record.hybrid_stack_trace()]
    return any("__main__" in name and "make" in name and "cpython" not in name for name in names)


reader = connected(int(sys.argv[1]))
end = time.monotonic() + 90
while sum(record.n_allocations for record in arrays(reader)) != KEPT and time.monotonic() < end:
    time.sleep(0.2)
kept = arrays(reader)
print(
    sum(record.n_allocations for record in kept), sum(record.n_allocations for record in kept if is_named(record)),
    flush=True,
)
reader.__exit__(None, None, None)
