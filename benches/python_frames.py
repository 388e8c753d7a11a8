"""What sampling costs interpreted code: benches/python_frames.py LIBRARY [PYTHON] [ROUNDS]

Processor time of one program that is recorded at 199 Hz, not recorded, and run with CPython's perf trampolines, in
turns; the least of each, as ratios to the least of those not recorded.
"""

import os
import subprocess
import sys
import tempfile

PROGRAM = """
import time
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
fib(20)
before = time.process_time()
fib(27)
print(time.process_time() - before)
"""


def main():
    library, *rest = sys.argv[1:]
    python = rest[0] if rest else sys.executable
    rounds = int(rest[1]) if len(rest) > 1 else 9
    with tempfile.TemporaryDirectory() as place:
        record = {"LD_PRELOAD": os.path.abspath(library), "JITLISTEN": "image", "JITLISTEN_RECORD": f"{place}/f.data"}
        ways = {
            "not recorded": {},
            "recorded": record,
            "recorded, without Python's frames": {**record, "JITLISTEN_RECORD": f"{place}/f.data,no-python"},
            "PYTHONPERFSUPPORT=1, not recorded": {"PYTHONPERFSUPPORT": "1"},
        }
        least = dict.fromkeys(ways, float("inf"))
        for _ in range(rounds):
            for way, variables in ways.items():
                command = [python, "-c", PROGRAM]
                done = subprocess.run(
                    command, env={**os.environ, **variables}, capture_output=True, text=True, check=True
                )
                least[way] = min(least[way], float(done.stdout))
        for way, seconds in least.items():
            print(f"| {way} | {seconds / least['not recorded']:.3f} |")


main()
