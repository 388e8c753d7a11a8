"""Cost of the library, as ratios of interleaved runs. Prints a Markdown table; asserts nothing.

    compare.py LIBRARY [ROUNDS, default 15]

Each round runs every variant once in a random order, so that drift affects all variants alike. A ratio is the median
over the rounds of a variant's time divided by the stock time of the same round; the interval is a 95 % bootstrap
interval of that median. `stock again` is the same program as stock, so a ratio within its interval is noise.
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
    # Without a cache directory, every process compiles all kernels.
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


def run(command, env):
    """Runs a process; returns its wall-clock and processor time in ms, and its output."""
    started = time.perf_counter_ns()
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    elapsed = (time.perf_counter_ns() - started) / 1e6
    process.returncode = os.waitstatus_to_exitcode(status)
    pathlib.Path(f"/tmp/perf-{process.pid}.map").unlink(missing_ok=True)
    if process.returncode:
        raise SystemExit(f"{command} failed: {process.returncode}")
    return {"clock": elapsed, "processor": (usage.ru_utime + usage.ru_stime) * 1e3}, output


def interleave(kinds, rounds, measure):
    """Returns, for each round, `{variant: {quantity: milliseconds}}`."""
    results = []
    for index in range(rounds):
        order = list(kinds)
        random.shuffle(order)
        results.append({kind: measure(kinds[kind]) for kind in order})
        if sys.stderr.isatty():
            print(f"\r{index + 1}/{rounds} rounds\r", end="", file=sys.stderr, flush=True)
    return results


def interval(values):
    """Returns the median and its 95 % bootstrap interval."""
    random_source = random.Random(1)
    medians = sorted(statistics.median(random_source.choices(values, k=len(values))) for _ in range(2000))
    return statistics.median(values), medians[49], medians[1949]


def format_interval(values, pattern):
    median, lower, upper = interval(values)
    return f"{pattern} [{pattern}, {pattern}]".format(median, lower, upper)


def ratios(results, kind, quantity):
    return format_interval([times[kind][quantity] / times["stock"][quantity] for times in results], "{:.3f}")


def differences(results, kind, quantity):
    return format_interval([times[kind][quantity] - times["stock"][quantity] for times in results], "{:+.2f}")


def print_table_head(*head):
    print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}")


def print_start_up(library, rounds):
    compared = ("jitlisten", "stock again")
    kinds = {name: env for name, env in variants(library).items() if name in ("stock", *compared)}
    print_table_head(
        "start-up", "stock, ms", *(f"{kind}, ms more" for kind in compared), *(f"{kind}, ratio" for kind in compared)
    )
    for program in ("pass", "import llvmlite.binding"):
        results = interleave(kinds, rounds, lambda env: run([PYTHON, "-c", program], env)[0])
        for quantity in ("clock", "processor"):
            stock = format_interval([times["stock"][quantity] for times in results], "{:.1f}")
            cells = [differences(results, kind, quantity) for kind in compared]
            cells += [ratios(results, kind, quantity) for kind in compared]
            print(f"| `python -c '{program}'`, {quantity} | {stock} | {' | '.join(cells)} |", flush=True)


def print_kernels(library, rounds):
    def measure(env):
        times_ns = json.loads(run([PYTHON, HERE / "kernels.py"], env)[1])
        return {name: nanoseconds / 1e6 for name, nanoseconds in times_ns.items()}

    results = interleave(variants(library), rounds, measure)
    compared = ("jitlisten", "unwind tables only", "from images", "stock again")
    print()
    print_table_head("kernel", "stock, ms", *(f"{kind}, ratio" for kind in compared))

    def line(label, quantity):
        stock = statistics.median(times_by_variant["stock"][quantity] for times_by_variant in results)
        print(f"| {label} | {stock:.2f} | {' | '.join(ratios(results, kind, quantity) for kind in compared)} |")

    def summary(kind):
        medians = [
            statistics.median(
                times_by_variant[kind][name] / times_by_variant["stock"][name] for times_by_variant in results
            )
            for name in loops
        ]
        return f"{statistics.median(medians):.3f}, at worst {max(medians):.3f}"

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
    print_start_up(library, rounds * 3)
    print_kernels(library, rounds)
    shutil.rmtree(IMAGES)


if __name__ == "__main__":
    main()
