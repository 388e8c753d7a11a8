"""Cost of sampling interpreted code: benches/python_frames.py LIBRARY [PYTHON] [ROUNDS]

Measures the processor time of one program in turns: recorded at 199 Hz, not recorded, and with CPython's perf
trampolines. Prints the minimum of each variant, relative to the minimum without a recording.
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
    with tempfile.TemporaryDirectory() as directory:
        record = {
            "LD_PRELOAD": os.path.abspath(library),
            "JITLISTEN": "image",
            "JITLISTEN_RECORD": f"{directory}/f.data",
        }
        variants = {
            "not recorded": {},
            "recorded": record,
            "recorded, without Python's frames": {**record, "JITLISTEN_RECORD": f"{directory}/f.data,no-python"},
            "PYTHONPERFSUPPORT=1, not recorded": {"PYTHONPERFSUPPORT": "1"},
        }
        minima = dict.fromkeys(variants, float("inf"))
        for _ in range(rounds):
            for variant, variables in variants.items():
                command = [python, "-c", PROGRAM]
                result = subprocess.run(
                    command, env={**os.environ, **variables}, capture_output=True, text=True, check=True
                )
                minima[variant] = min(minima[variant], float(result.stdout))
        for variant, seconds in minima.items():
            print(f"| {variant} | {seconds / minima['not recorded']:.3f} |")


main()
