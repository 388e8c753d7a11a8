"""What the sampler sees and costs, as Markdown tables: benches/sampling.py LIBRARY [ROUNDS]

With the Python of target/venv/numba-0.68.1, cc, perf and valgrind. Shares are judged against callgrind's instruction
counts of the same functions and beside perf's own samples; those of lines (by the command `jitlisten` beside LIBRARY)
against callgrind's, too; the time of threads against the kernel's; the cost in one process that records and does not
record in turns, with the turns that do not compared with each other (A/A). The table of lines is made by `sampling.py
LIBRARY lines [SECONDS]` with a Python of ci/lines.sh, which has pytest.
"""

import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMPLETE = ("_start", "clone3", "__clone3", "clone", "__clone")


def samples(data):
    """Pairs of a period and its frames, the innermost first, with the thread."""
    command = ["perf", "script", "--no-inline", "--max-stack", "1024", "-F", "tid,period,ip,sym", "-i", str(data)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = []
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if line.strip()]
        if lines:
            tid, period = lines[0].replace(":", " ").split()[:2]
            frames = [line.strip().split(" ", 1)[-1].strip() for line in lines[1:]]
            found.append((int(tid), int(period), frames))
    return found


def share(found, name, names):
    weight = lambda wanted: sum(period for _, period, frames in found if any(one in frames for one in wanted))
    return 100 * weight([name]) / max(weight(names), 1)


def recorded(command, data, words="", **changes):
    changes.update(LD_PRELOAD=LIBRARY, JITLISTEN="unwind", JITLISTEN_RECORD=f"{data}{words}")
    done = subprocess.run(command, env={**os.environ, **changes}, capture_output=True, text=True, check=True)
    return samples(data), done.stdout


def by_callgrind(program, place):
    """Inclusive instruction counts of the functions of `sampled fixed`."""
    out = place / "callgrind"
    subprocess.run(
        ["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={out}", program, "fixed", "20"],
        check=True, capture_output=True,
    )
    text = subprocess.run(
        ["callgrind_annotate", "--inclusive=yes", "--threshold=100", out], capture_output=True, text=True, check=True
    ).stdout
    counts = {}
    for line in text.splitlines():
        match = re.match(r"\s*([\d,]+) .*:(\w+) \[", line)
        if match:
            counts.setdefault(match[2], int(match[1].replace(",", "")))
    return lambda one, other: 100 * counts[one] / (counts[one] + counts[other])


def shares(program, place):
    truth = by_callgrind(program, place)
    print("| program | samples | callgrind's instructions | ours | perf's | stacks of ours that are whole |")
    print("| --- | --- | --- | --- | --- | --- |")
    for scenario, one, other in [("loops", "three_of_four", "one_of_four"), ("exps", "exp_three", "exp_one")]:
        ours, _ = recorded([program, scenario, "25"], place / "ours.data", ",hz=199")
        data = place / "perf.data"
        command = [
            "perf", "record", "-q", "-e", "task-clock:u", "-F", "199", "--call-graph", "dwarf,4096", "-o", str(data)
        ]
        subprocess.run([*command, program, scenario, "25"], check=True, capture_output=True)
        perfs = samples(data)
        whole = 100 * sum(frames[-1:] != [] and frames[-1] in COMPLETE for *_, frames in ours) / len(ours)
        print(
            f"| {scenario} | {len(ours)}, {len(perfs)} | {truth(one, other):.1f} % |"
            f" {share(ours, one, [one, other]):.1f} % | {share(perfs, one, [one, other]):.1f} % | {whole:.2f} % |",
            flush=True,
        )


#: Marks of lines in python/tests/lines/truth.py: the same statement, run three times as often on the first as on the
#: second.
PAIRS = {
    "two loops": ("loop three", "loop one"),
    "inlined callees": ("heavy callee", "light callee"),
    "two files": ("other file", "own line"),
    "`exp` on two lines": ("costly three", "costly one"),
    "`prange`": ("parallel three", "parallel one"),
}


def line_counts(data):
    """Of each marked line, itself and with what it calls: the percent of the time, and the samples."""
    command = [pathlib.Path(LIBRARY).parent / "jitlisten", "lines", "--json", "-", data]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    counts = {}
    for file in found["files"]:
        for line in file["lines"]:
            _, _, mark = (line["source"] or "").rstrip().rpartition("  # ")
            counts[mark] = [(line[f"{which}_percent"], line[which]) for which in ("self", "total")]
    return counts


def marked_by_callgrind(place, environment):
    """The same of callgrind's instructions, in thirty rounds."""
    sys.path.insert(0, str(ROOT / "python/tests"))
    from test_lines_callgrind import Counts, place as place_of

    out = place / "callgrind-lines"
    words = [
        "valgrind", "-q", "--tool=callgrind", "--compress-strings=no", "--compress-pos=no",
        f"--callgrind-out-file={out}",
    ]
    program = [sys.executable, ROOT / "python/tests/lines/truth.py", "0"]
    subprocess.run(
        [*words, *program], env={**environment, "NUMBA_CPU_NAME": "generic"}, check=True, capture_output=True
    )
    counts = Counts(out)
    marks = [mark for pair in PAIRS.values() for mark in pair]
    return {mark: [(one[place_of(mark)],) for one in (counts.own, counts.all)] for mark in marks}


def lines(place, seconds=110):
    environment = {
        **os.environ, "LD_PRELOAD": LIBRARY, "JITLISTEN": "image", "JITLISTEN_DIR": str(place),
        "NUMBA_NUM_THREADS": "1",
    }
    data = place / "lines.data"
    program = [sys.executable, ROOT / "python/tests/lines/truth.py", str(seconds)]
    subprocess.run(program, env={**environment, "JITLISTEN_RECORD": f"{data},hz=249"}, check=True, capture_output=True)
    ours, truth = line_counts(data), marked_by_callgrind(place, environment)
    print("| lines | samples | callgrind's instructions | ours |\n| --- | --- | --- | --- |")
    for name, (three, one) in PAIRS.items():
        # What a call of `exp` costs is inside of the C library.
        which = 1 if "exp" in name else 0
        share = lambda counts: 100 * counts[three][which][0] / (counts[three][which][0] + counts[one][which][0])
        samples = ours[three][which][1] + ours[one][which][1]
        print(f"| {name} | {samples} | {share(truth):.1f} % | {share(ours):.1f} % |", flush=True)


#: Programs of prange begin with it.
WAVES = """
import json, os, sys, time
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
"""

PRANGE = WAVES + """
def spent():
    threads = os.listdir("/proc/self/task")
    return {int(t): int(open(f"/proc/self/task/{t}/schedstat").read().split()[0]) for t in threads}
waves(np.arange(64.0), 10)
until = time.process_time() + 8
while time.process_time() < until:
    waves(np.arange(64.0), 100_000)
# The main thread goes on after this.
print({tid: time for tid, time in spent().items() if tid != os.getpid()})
"""


def threads(place):
    print("| threads | samples | the worker that is furthest off, by samples : by the kernel | whole stacks |")
    print("| --- | --- | --- | --- |")
    for count in (2, 8):
        found, out = recorded(
            [sys.executable, "-c", PRANGE], place / "t.data", ",hz=199",
            NUMBA_NUM_THREADS=str(count), NUMBA_THREADING_LAYER="workqueue",
        )
        kernel = {tid: time for tid, time in eval(out).items() if time > 200_000_000}
        ratios = [sum(period for tid, period, _ in found if tid == one) / time for one, time in kernel.items()]
        worst = max(ratios, key=lambda ratio: abs(ratio - 1))
        compiled = [frames for *_, frames in found if any("waves" in frame or "prange" in frame for frame in frames)]
        whole = 100 * sum(frames[-1] in COMPLETE for frames in compiled) / max(len(compiled), 1)
        print(f"| {count} ({len(ratios)} busy) | {len(found)} | {worst:.4f} | {whole:.2f} % |", flush=True)


COST = WAVES + """
sys.path.insert(0, sys.argv[1])
import jitlisten
jitlisten.enable("unwind", lines=False)
work = lambda: waves(np.arange(64.0), 60_000)
work()
def timed():
    # More than a second of processor time: what a recording takes to begin is not its cost.
    began, clock = time.process_time(), time.perf_counter()
    for _ in range(40):
        work()
    return time.process_time() - began, time.perf_counter() - clock
rows = []
for _ in range(int(sys.argv[3])):
    row = [timed()]
    for hz, wall in ((199, False), (1000, True)):
        jitlisten.start_recording(sys.argv[2], hz=hz, wall=wall, python=False, lines=False)
        row.append(timed())
        jitlisten.stop_recording()
    row.append(timed())
    rows.append(row)
print(json.dumps(rows))
"""


def cost(place, rounds, threads):
    command = [sys.executable, "-c", COST, str(ROOT / "python"), str(place / "c.data"), str(rounds)]
    changes = dict(JITLISTEN_LIBRARY=LIBRARY, NUMBA_NUM_THREADS=str(threads), NUMBA_THREADING_LAYER="workqueue")
    changes.update(LD_PRELOAD=LIBRARY, JITLISTEN="unwind")
    done = subprocess.run(command, env={**os.environ, **changes}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    rows = json.loads(done.stdout.splitlines()[-1])
    print(f"| {threads} threads | 199 Hz of processor time | 1,000 Hz of wall-clock time | A/A |")
    print("| --- | --- | --- | --- |")
    for name, which in (("processor time", 0), ("clock", 1)):
        cells = []
        for column in (1, 2, 3):
            ratios = sorted(row[column][which] / row[0][which] for row in rows)
            quarter = len(ratios) // 4
            cells.append(f"{statistics.median(ratios):.4f} [{ratios[quarter]:.3f}, {ratios[-quarter - 1]:.3f}]")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def main():
    only_lines = sys.argv[2:3] == ["lines"]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 and not only_lines else 30
    with tempfile.TemporaryDirectory(prefix="jitlisten-sampling-") as name:
        place = pathlib.Path(name)
        if only_lines:
            return lines(place, *map(int, sys.argv[3:4]))
        program = str(place / "sampled")
        flags = ["-O1", "-g", "-pthread", f"-I{ROOT / 'include'}"]
        source = ROOT / "tests/hosts/sampled.c"
        subprocess.run(["cc", *flags, source, "-lm", "-o", program], check=True)
        shares(program, place)
        print()
        threads(place)
        print()
        for count in (4, 2):
            cost(place, rounds, count)
            print()


if __name__ == "__main__":
    LIBRARY = str(pathlib.Path(sys.argv[1]).resolve())
    main()
