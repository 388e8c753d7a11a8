"""Cost of a complete profile, with and without the library: `perf record -g` of `workload.py`, then `perf report`.

    profiled.py LIBRARY [ROUNDS, default 9]

Rounds, ratios and intervals are as in compare.py. Processor time is that of perf and the program together. For the
jitdump, the time of `perf report` includes `perf inject --jit` before it. Each run checks that the report names all
functions of the workload with the library, and none without it.
"""

import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

from compare import HERE, PYTHON, differences, environment, interleave, print_table_head, ratios, run

PERF = os.environ.get("PERF", "perf")
# Number of functions in workload.py.
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
    times, output = run(record, env)
    perf_map = pathlib.Path(f"/tmp/perf-{int(output.split()[0])}.map")
    report = f'"{PERF}" report -i "{data}" --sort sym -g none --stdio 2> /dev/null'
    if env.get("JITLISTEN") == "jitdump":
        inject = f'cd "{directory}" && "{PERF}" inject --jit -i "{data}" -o jit.data'
        report = f"{inject} && {report.replace(str(data), 'jit.data')}"
    report_times, text = run(["sh", "-c", report], environment(None))
    named_functions = sum(f"summed_{number}".encode() in text for number in range(FUNCTIONS))
    if named_functions != (FUNCTIONS if "LD_PRELOAD" in env else 0):
        raise SystemExit(f"named: {named_functions}, with {env.get('JITLISTEN')}\n{text.decode()[:2000]}")
    perf_map.unlink(missing_ok=True)
    size = {"size": data.stat().st_size / 1e6}
    subprocess.run(f'rm -rf "{directory}"/*', shell=True, check=True)
    return (
        {f"record, {quantity}": value for quantity, value in times.items()} | {"report": report_times["clock"]} | size
    )


def main():
    library = os.path.abspath(sys.argv[1])
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 9
    random.seed(1)
    with tempfile.TemporaryDirectory(prefix="jitlisten-profiled-") as directory:
        kinds = variants(library, directory)
        results = interleave(kinds, rounds, lambda env: measure(env, directory))
    compared = [kind for kind in kinds if kind != "stock"]
    print(f"Median [95 % interval] of {rounds} interleaved rounds.\n")
    print_table_head("`perf record -g` of the whole program", "stock", *(f"{kind}, ratio" for kind in compared))
    units = {"record, clock": "ms", "record, processor": "ms", "report": "ms", "size": "MB"}
    for quantity, unit in units.items():
        stock = statistics.median(times["stock"][quantity] for times in results)
        print(
            f"| {quantity} | {stock:.1f} {unit} | {' | '.join(ratios(results, kind, quantity) for kind in compared)} |"
        )
    extra_times = " | ".join(differences(results, kind, "record, processor") for kind in compared)
    print(f"| ms more, processor | | {extra_times} |")


if __name__ == "__main__":
    main()
