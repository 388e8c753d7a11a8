"""What a whole profile costs, with the library and without: `perf record -g` over `workload.py`, then `perf report`.

    profiled.py LIBRARY [ROUNDS, default 9]

Rounds, ratios and intervals are those of compare.py. Processor time is that of perf and the program together. For the
jitdump, `perf report` is what comes after `perf inject --jit`, and both are counted. Every report of a variant with the
library must name all functions of the workload, and no report without it may name one: that is checked each time.
"""

import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

from compare import HERE, PYTHON, differences, environment, interleave, ratios, run, table

PERF = os.environ.get("PERF", "perf")
# In workload.py.
FUNCTIONS = 8
RECORD = [PERF, "record", "-q", "-k", "mono", "-e", "cpu-clock", "-F", "997", "-g"]


def variants(library, directory):
    return {
        "stock": environment(None),
        "stock again": environment(None),
        "perf map": environment(library, JITLISTEN="perfmap"),
        "jitdump": environment(library, JITLISTEN="jitdump", JITLISTEN_DIR=directory),
        "images": environment(library, JITLISTEN="image", JITLISTEN_DIR=directory),
    }


def measure(env, directory):
    data = pathlib.Path(directory) / "perf.data"
    record = RECORD + ["-o", data, PYTHON, HERE / "workload.py"]
    took, printed = run(record, env)
    perf_map = pathlib.Path(f"/tmp/perf-{int(printed.split()[0])}.map")
    report = f'"{PERF}" report -i "{data}" --sort sym -g none --stdio 2> /dev/null'
    if env.get("JITLISTEN") == "jitdump":
        inject = f'cd "{directory}" && "{PERF}" inject --jit -i "{data}" -o jit.data'
        report = f"{inject} && {report.replace(str(data), 'jit.data')}"
    reported, text = run(["sh", "-c", report], environment(None))
    named = sum(f"summed_{number}".encode() in text for number in range(FUNCTIONS))
    if named != (FUNCTIONS if "LD_PRELOAD" in env else 0):
        raise SystemExit(f"named: {named}, with {env.get('JITLISTEN')}\n{text.decode()[:2000]}")
    perf_map.unlink(missing_ok=True)
    size = {"size": data.stat().st_size / 1e6}
    subprocess.run(f'rm -rf "{directory}"/*', shell=True, check=True)
    return {f"record, {what}": value for what, value in took.items()} | {"report": reported["clock"]} | size


def main():
    library = os.path.abspath(sys.argv[1])
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 9
    random.seed(1)
    with tempfile.TemporaryDirectory(prefix="jitlisten-profiled-") as directory:
        kinds = variants(library, directory)
        results = interleave(kinds, rounds, lambda env: measure(env, directory))
    compared = [kind for kind in kinds if kind != "stock"]
    print(f"Median [95 % interval] of {rounds} interleaved rounds.\n")
    table("`perf record -g` of the whole program", "stock", *(f"{kind}, ratio" for kind in compared))
    units = {"record, clock": "ms", "record, processor": "ms", "report": "ms", "size": "MB"}
    for what, unit in units.items():
        stock = statistics.median(one["stock"][what] for one in results)
        print(f"| {what} | {stock:.1f} {unit} | {' | '.join(ratios(results, kind, what) for kind in compared)} |")
    more = " | ".join(differences(results, kind, "record, processor") for kind in compared)
    print(f"| ms more, processor | | {more} |")


if __name__ == "__main__":
    main()
