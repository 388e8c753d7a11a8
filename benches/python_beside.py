"""The sampler beside py-spy and CPython's `profiling.sampling`, on interpreted programs, as rows of records/beside.tsv:

    benches/python_beside.py LIBRARY [SAMPLES]

With the Python that runs this: py-spy where it is installed, `profiling.sampling` from 3.15 on; and perf, which reads
the recording. Each program calls `long` and `short`, whose work is three to one, for a fixed number of turns, and
prints the true share of `long` and its own time. For each tool, at 199 Hz, rounds until there are SAMPLES below one of
the two functions (4,000): samples of all rounds, those below one of the two, the error of the share in points, one
sigma of that many samples, and the program's processor time and time by the clock as ratios to runs of the program
alone that were made between.
"""

import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

PROGRAM = '''
import json, sys, time

def burn(count):
    total = 0
    for number in range(count):
        total += number * number
    return total

def key(value):
    return burn(40) - value

WORK = {
    "interpreted": lambda times: burn(2000 * times),
    "calls from C": lambda times: sorted(range(45 * times), key=key),
    "in C": lambda times: sum(range(9000 * times)),
}[sys.argv[1]]

def long():
    return WORK(3)

def short():
    return WORK(1)

spent = {long: 0.0, short: 0.0}
began, clock = time.process_time(), time.perf_counter()
for _ in range(int(sys.argv[2])):
    for function in spent:
        before = time.thread_time()
        function()
        spent[function] += time.thread_time() - before
shares = [spent[long] / sum(spent.values()), time.process_time() - began, time.perf_counter() - clock]
print(json.dumps(shares), flush=True)
'''
PROGRAMS = ["interpreted", "calls from C", "in C"]
#: Two or three seconds.
TURNS = 20000
HZ = "199"
PY_SPY = os.path.join(os.path.dirname(sys.executable), "py-spy")


def run(command, **variables):
    """The true share, processor time and time by the clock."""
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    if not lines:
        sys.exit(f"{command}: {done.stdout} {done.stderr}")
    return json.loads(lines[-1])


def collapsed(path):
    """Weight of each stack, as text."""
    with open(path) as lines:
        return [(float(line.rsplit(" ", 1)[1]), line) for line in lines if " " in line]


def recorded(program, place, library):
    data = f"{place}/f.data"
    measured = run(program, LD_PRELOAD=library, JITLISTEN="image", JITLISTEN_RECORD=f"{data},hz={HZ}")
    text = subprocess.run(
        ["perf", "script", "--no-inline", "--max-stack", "1024", "-F", "period,ip,sym", "-i", data],
        capture_output=True, text=True,
    ).stdout
    stacks = [block.split(None, 1) for block in text.split("\n\n") if block.strip()]
    return measured, [(float(period.rstrip(":")), frames) for period, frames in stacks]


def by_py_spy(program, place, _library):
    measured = run([PY_SPY, "record", "-r", HZ, "-f", "raw", "-o", f"{place}/raw", "--", *program])
    return measured, collapsed(f"{place}/raw")


def by_profiling(program, place, _library):
    command = [
        sys.executable, "-m", "profiling.sampling", "run", "-r", HZ, "--mode", "cpu", "--collapsed", "-o",
        f"{place}/collapsed",
    ]
    measured = run([*command, *program[1:]])
    return measured, collapsed(f"{place}/collapsed")


def tools():
    found = {"jitlisten": recorded}
    if os.path.exists(PY_SPY):
        found["py-spy"] = by_py_spy
    if sys.version_info >= (3, 15) and importlib.util.find_spec("profiling.sampling"):
        found["profiling.sampling"] = by_profiling
    return found


def main():
    library, wanted = os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 4000
    print("python\tprogram\ttool\tsamples\tbelow one of both\terror, points\tsigma\tprocessor time\ttime by the clock")
    with tempfile.TemporaryDirectory() as place:
        script = f"{place}/program.py"
        with open(script, "w") as file:
            file.write(PROGRAM)
        for name in PROGRAMS:
            program = [sys.executable, script, name, str(TURNS)]
            for tool, profile in tools().items():
                truths, samples, ratios, seen = [], [], [], 0
                # A line of a collapsed file is for several.
                count = lambda pairs: len(pairs) if tool == "jitlisten" else int(sum(weight for weight, _ in pairs))
                while seen < wanted:
                    alone = run(program)
                    measured, found = profile(program, place, library)
                    truths.append(measured[0])
                    samples += found
                    ratios.append([one / other for one, other in zip(measured[1:], alone[1:])])
                    seen = count([pair for pair in samples if re.search(r"\b(long|short)\b", pair[1])])
                weigh = lambda word: sum(weight for weight, stack in samples if re.search(rf"\b{word}\b", stack))
                both = {word: weigh(word) for word in ("long", "short")}
                share = both["long"] / sum(both.values())
                error, sigma = 100 * (share - statistics.mean(truths)), 100 * (0.1875 / seen) ** 0.5
                processor, clock = (statistics.median(column) for column in zip(*ratios))
                cells = [
                    "%d.%d" % sys.version_info[:2], name, tool, count(samples), seen, f"{error:+.1f}", f"{sigma:.1f}",
                    f"{processor:.3f}", f"{clock:.3f}",
                ]
                print("\t".join(map(str, cells)), flush=True)


main()
