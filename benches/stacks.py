"""Percentage of sampled stacks that reach the start of their thread, as a Markdown table.

    benches/stacks.py LIBRARY [SECONDS [whole]]

Needs a Python with Numba, numpy and, for two rows, tbb and greenlet; and target/venv/numba-0.68.1-python-3.12 for
CPython's perf trampolines. Each row is a separate process that warms up and then records SECONDS of processor time of
one activity. A stack is whole if its outermost function is `_start` or a thread's start function. The last rows cover
whole processes, including imports and compilation; `whole` runs only these.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

from sampling import COMPLETE, ROOT, WAVES, read_samples

STEADY = """
import os, sys, time, math, signal
sys.path.insert(0, sys.argv[1])
import jitlisten, numpy as np
def record(work):
    work()
    jitlisten.start_recording(sys.argv[2], hz=499, lines=False)
    until = time.process_time() + float(sys.argv[3])
    while time.process_time() < until:
        work()
    jitlisten.stop_recording()
"""
NUMBA = (
    STEADY
    + """
from numba import njit
"""
)
PRANGE = STEADY + WAVES + "record(lambda: waves(np.arange(64.0), 20_000))\n"
PYTHON = """
def inner(n):
    total = 0
    for i in range(n):
        total += i * i % 7
    return total
def outer():
    return [inner(500) for _ in range(20)]
"""

ROWS = {
    "compiled code": (
        NUMBA
        + """
@njit
def loop(n):
    x = 1.0
    for i in range(n):
        x = x * 0.999 + 1.0 / (x * x + 1.0)
    return x
record(lambda: loop(1_000_000))
""",
        {},
    ),
    "libm, called by compiled code": (
        NUMBA
        + """
@njit
def loop(n):
    x = 0.0
    for i in range(n):
        x += math.exp(math.sin(x)) + math.log(2.0 + x * x) + x % 3.0
    return x
record(lambda: loop(200_000))
""",
        {},
    ),
    "BLAS of numpy, two threads": (
        STEADY + "a = np.random.rand(400, 400)\nrecord(lambda: a @ a)\n",
        {"OPENBLAS_NUM_THREADS": "2"},
    ),
    "memcpy and ufuncs of numpy": (
        STEADY + "a = np.random.rand(1 << 20)\nrecord(lambda: np.sqrt(a.copy()).sum())\n",
        {},
    ),
    "interpreter": (STEADY + PYTHON + "record(outer)\n", {}),
    "interpreter, -X perf, Python 3.12": (STEADY + PYTHON + "record(outer)\n", {"PYTHONPERFSUPPORT": "1"}),
    "prange, workqueue": (PRANGE, {"NUMBA_THREADING_LAYER": "workqueue", "NUMBA_NUM_THREADS": "4"}),
    "prange, omp": (PRANGE, {"NUMBA_THREADING_LAYER": "omp", "NUMBA_NUM_THREADS": "4"}),
    "prange, tbb": (
        PRANGE,
        {"NUMBA_THREADING_LAYER": "tbb", "NUMBA_NUM_THREADS": "4", "LD_LIBRARY_PATH": sys.prefix + "/lib"},
    ),
    "Python's signal handlers": (
        STEADY
        + PYTHON
        + """
signal.signal(signal.SIGALRM, lambda *_: inner(2000))
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
record(outer)
signal.setitimer(signal.ITIMER_REAL, 0)
""",
        {},
    ),
    "greenlets": (
        STEADY
        + PYTHON
        + """
import greenlet
def switch():
    main = greenlet.getcurrent()
    def body():
        for _ in range(5):
            inner(500)
            main.switch()
    one = greenlet.greenlet(body)
    for _ in range(6):
        one.switch()
record(switch)
""",
        {},
    ),
}
# #: Number of runs of each whole process, because one run has only a few hundred samples.
REPETITIONS = 12
WHOLE_PROCESSES = {
    "imports and compilation": (
        "from numba import njit\nfor i in range(6):\n    njit(lambda x, i=i: [x + j for j in range(i)])(3.0)\n"
    ),
    "imports": "import numba, numpy.random, asyncio, sqlite3, email.message, unittest, xml.dom.minidom\n",
}


def print_row(name, program, variables, directory, seconds):
    python = ROOT / "target/venv/numba-0.68.1-python-3.12/bin/python" if "3.12" in name else sys.executable
    data = directory / "f.data"
    environment = {
        **os.environ,
        "LD_PRELOAD": LIBRARY,
        "JITLISTEN": "unwind",
        "JITLISTEN_LIBRARY": LIBRARY,
        "JITLISTEN_DIR": str(directory),
        **variables,
    }
    if name in WHOLE_PROCESSES:
        environment["JITLISTEN_RECORD"] = f"{data},hz=499"
    all_samples = []
    for _ in range(REPETITIONS if name in WHOLE_PROCESSES else 1):
        result = subprocess.run(
            [python, "-c", program, str(ROOT / "python"), data, str(seconds)],
            env=environment,
            capture_output=True,
            text=True,
        )
        if result.returncode:
            reason = (
                "needs what is not installed" if result.returncode == 3 else result.stderr.strip().splitlines()[-1:]
            )
            print(f"| {name} | - | {reason} | |", flush=True)
            return
        all_samples += read_samples(data)
    incomplete = [frames for *_, frames in all_samples if not frames or frames[-1] not in COMPLETE]
    outermost = sorted({frames[-1] if frames else "none" for frames in incomplete})[:4]
    whole_percent = 100 * (1 - len(incomplete) / max(len(all_samples), 1))
    print(f"| {name} | {len(all_samples)} | {whole_percent:.2f} % | {', '.join(outermost)} |", flush=True)


def main():
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 8
    print("| what runs | samples | whole stacks | the others end in |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(prefix="jitlisten-stacks-") as name:
        directory = pathlib.Path(name)
        for label, (program, variables) in ROWS.items() if sys.argv[3:] != ["whole"] else ():
            print_row(label, program, variables, directory, seconds)
        for label, program in WHOLE_PROCESSES.items():
            print_row(label, program, {}, directory, seconds)


if __name__ == "__main__":
    LIBRARY = str(pathlib.Path(sys.argv[1]).resolve())
    main()
