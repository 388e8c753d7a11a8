"""How many stacks reach the start of their thread, as a Markdown table: benches/stacks.py LIBRARY [SECONDS [whole]]

With this Python, which has Numba, numpy and, for two rows, tbb and greenlet; and with
target/venv/numba-0.68.1-python-3.12 for CPython's trampolines. Each row is a process of its own: it warms up, and then
records so many seconds of processor time of one thing. A stack is whole if its outermost function is `_start` or a
thread's start. The last rows, which are all that `whole` runs, are of whole processes, imports and compilation
included.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

from sampling import COMPLETE, ROOT, WAVES, samples

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
NUMBA = STEADY + """
from numba import njit
"""
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
        NUMBA + """
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
        NUMBA + """
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
        STEADY + PYTHON + """
signal.signal(signal.SIGALRM, lambda *_: inner(2000))
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
record(outer)
signal.setitimer(signal.ITIMER_REAL, 0)
""",
        {},
    ),
    "greenlets": (
        STEADY + PYTHON + """
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
#: So often, because each has a few hundred samples.
TIMES = 12
WHOLE = {
    "imports and compilation": (
        "from numba import njit\nfor i in range(6):\n    njit(lambda x, i=i: [x + j for j in range(i)])(3.0)\n"
    ),
    "imports": "import numba, numpy.random, asyncio, sqlite3, email.message, unittest, xml.dom.minidom\n",
}


def run(name, program, changes, place, seconds):
    python = ROOT / "target/venv/numba-0.68.1-python-3.12/bin/python" if "3.12" in name else sys.executable
    data = place / "f.data"
    environment = {
        **os.environ, "LD_PRELOAD": LIBRARY, "JITLISTEN": "unwind", "JITLISTEN_LIBRARY": LIBRARY,
        "JITLISTEN_DIR": str(place), **changes,
    }
    if name in WHOLE:
        environment["JITLISTEN_RECORD"] = f"{data},hz=499"
    found = []
    for _ in range(TIMES if name in WHOLE else 1):
        done = subprocess.run(
            [python, "-c", program, str(ROOT / "python"), data, str(seconds)], env=environment, capture_output=True,
            text=True,
        )
        if done.returncode:
            why = "needs what is not installed" if done.returncode == 3 else done.stderr.strip().splitlines()[-1:]
            print(f"| {name} | - | {why} | |", flush=True)
            return
        found += samples(data)
    broken = [frames for *_, frames in found if not frames or frames[-1] not in COMPLETE]
    ends = sorted({frames[-1] if frames else "none" for frames in broken})[:4]
    whole = 100 * (1 - len(broken) / max(len(found), 1))
    print(f"| {name} | {len(found)} | {whole:.2f} % | {', '.join(ends)} |", flush=True)


def main():
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 8
    print("| what runs | samples | whole stacks | the others end in |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(prefix="jitlisten-stacks-") as name:
        place = pathlib.Path(name)
        for row, (program, changes) in ROWS.items() if sys.argv[3:] != ["whole"] else ():
            run(row, program, changes, place, seconds)
        for row, program in WHOLE.items():
            run(row, program, {}, place, seconds)


if __name__ == "__main__":
    LIBRARY = str(pathlib.Path(sys.argv[1]).resolve())
    main()
