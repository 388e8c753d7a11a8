"""What the library costs, as ratios measured side by side in one run. Prints a Markdown table; asserts nothing.

    compare.py LIBRARY [ROUNDS, default 15]

Every round runs every variant once, in an order of its own, so that what drifts drifts for all. A ratio is the median
over the rounds of this round's time by this round's stock time; the interval is a 95 % bootstrap of that median. `stock
again` is the same thing as stock, measured the same way: a ratio inside its interval is noise.
"""

import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
PYTHON = sys.executable
IMAGES = tempfile.mkdtemp(prefix="jitlisten-bench-")


def environment(library, **variables):
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("JITLISTEN")}
    inherited["OPENBLAS_NUM_THREADS"] = "1"
    # Everything is compiled in every process.
    inherited.pop("NUMBA_CACHE_DIR", None)
    return inherited | ({"LD_PRELOAD": library} if library else {}) | variables


def variants(library):
    return {
        "stock": environment(None),
        "stock again": environment(None),
        "jitlisten": environment(library),
        "unwind tables only": environment(library, JITLISTEN_FRAME_POINTERS="0"),
        "from images": environment(library, JITLISTEN="image", JITLISTEN_DIR=IMAGES),
    }


def run(words, env):
    """What a process took in milliseconds, by the clock and of the processor, and what it printed."""
    began = time.perf_counter_ns()
    process = subprocess.Popen(words, env=env, stdout=subprocess.PIPE)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    taken = (time.perf_counter_ns() - began) / 1e6
    process.returncode = os.waitstatus_to_exitcode(status)
    pathlib.Path(f"/tmp/perf-{process.pid}.map").unlink(missing_ok=True)
    if process.returncode:
        raise SystemExit(f"{words} failed: {process.returncode}")
    return {"clock": taken, "processor": (usage.ru_utime + usage.ru_stime) * 1e3}, output


def interleave(kinds, rounds, measure):
    """Per round, variant -> {what: milliseconds}."""
    results = []
    for turn in range(rounds):
        order = list(kinds)
        random.shuffle(order)
        results.append({kind: measure(kinds[kind]) for kind in order})
        if sys.stderr.isatty():
            print(f"\r{turn + 1}/{rounds} rounds\r", end="", file=sys.stderr, flush=True)
    return results


def interval(values):
    """The median and its 95 % bootstrap interval."""
    chance = random.Random(1)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(2000))
    return statistics.median(values), medians[49], medians[1949]


def spread(values, pattern):
    middle, low, high = interval(values)
    return f"{pattern} [{pattern}, {pattern}]".format(middle, low, high)


def ratios(results, kind, what):
    return spread([one[kind][what] / one["stock"][what] for one in results], "{:.3f}")


def differences(results, kind, what):
    return spread([one[kind][what] - one["stock"][what] for one in results], "{:+.2f}")


def table(*head):
    print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}")


def start_up(library, rounds):
    compared = ("jitlisten", "stock again")
    kinds = {name: env for name, env in variants(library).items() if name in ("stock", *compared)}
    table("start-up", "stock, ms", *(f"{kind}, ms more" for kind in compared), *(f"{kind}, ratio" for kind in compared))
    for program in ("pass", "import llvmlite.binding"):
        results = interleave(kinds, rounds, lambda env: run([PYTHON, "-c", program], env)[0])
        for what in ("clock", "processor"):
            stock = spread([one["stock"][what] for one in results], "{:.1f}")
            cells = [differences(results, kind, what) for kind in compared]
            cells += [ratios(results, kind, what) for kind in compared]
            print(f"| `python -c '{program}'`, {what} | {stock} | {' | '.join(cells)} |", flush=True)


def kernels(library, rounds):
    def measure(env):
        times = json.loads(run([PYTHON, HERE / "kernels.py"], env)[1])
        return {name: nanoseconds / 1e6 for name, nanoseconds in times.items()}

    results = interleave(variants(library), rounds, measure)
    compared = ("jitlisten", "unwind tables only", "from images", "stock again")
    print()
    table("kernel", "stock, ms", *(f"{kind}, ratio" for kind in compared))

    def line(label, what):
        stock = statistics.median(one["stock"][what] for one in results)
        print(f"| {label} | {stock:.2f} | {' | '.join(ratios(results, kind, what) for kind in compared)} |")

    def summary(kind):
        each = [statistics.median(one[kind][name] / one["stock"][name] for one in results) for name in loops]
        return f"{statistics.median(each):.3f}, at worst {max(each):.3f}"

    loops = [name for name in results[0]["stock"] if name not in ("compile", "fib")]
    for name in loops:
        line(name, name)
    print(f"| **median of these** | | {' | '.join(map(summary, compared))} |")
    line("fib (nothing but calls)", "fib")
    line("compile time of all", "compile")


def main():
    library = sys.argv[1]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 15
    random.seed(1)
    version = sys.version.split()[0]
    print(f"Median [95 % interval] of {rounds} interleaved rounds (start-up: {rounds * 3}), Python {version}.\n")
    start_up(library, rounds * 3)
    kernels(library, rounds)
    shutil.rmtree(IMAGES)


if __name__ == "__main__":
    main()
