#!/usr/bin/env python3
"""Prints which rule each kernel in kernels.py gets, by Numba release and processor.

A cell is `RULE` if the kernel gets exactly the expected advice, else `RULE (expected ...)`, and the exit status is 1.
`--speedups` measures each change, too, in each column. A gain outside of the range that the advice states fails.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

KERNELS = pathlib.Path(__file__).resolve().parent / "kernels.py"
#: Number of kernels per recording. A loop with less than 1 % of the samples gets no advice.
BATCH = 24
SECONDS = "0.35"
#: Two measurements of a kernel differ by less.
NOISE = 0.03


def rules(command, data, names):
    """Returns the rules reported for the loops in each kernel's lines, and the gain that they state."""
    report = json.loads(
        subprocess.run([command, "lines", "--json", "-", data], check=True, stdout=subprocess.PIPE).stdout
    )
    lines = [line for file in report["files"] if file["path"] == str(KERNELS) for line in file["lines"]]
    loops = [loop for line in lines for loop in line["loops"]]
    loops_by_kernel = {
        name: [loop for loop in loops if loop["first"] <= last and first <= loop["last"]]
        for name, (first, last) in names.items()
    }
    advice_by_kernel = {name: [advice for loop in loops_by_kernel[name] for advice in loop["advice"]] for name in names}
    return {
        name: (
            ", ".join(sorted({advice["rule"] for advice in advice_by_kernel[name]}))
            or ("-" if loops_by_kernel[name] else "no loop"),
            next((advice["gain"] for advice in advice_by_kernel[name] if advice["gain"]), None),
        )
        for name in names
    }


def column(command, python, environment, kernels, directory):
    rules_by_kernel, names = {}, list(kernels)
    directory.mkdir(parents=True, exist_ok=True)
    environment = dict(environment, NUMBA_CACHE_DIR=str(directory), JITLISTEN_DIR=str(directory))
    for start in range(0, len(names), BATCH):
        batch = names[start : start + BATCH]
        data = directory / f"{batch[0]}.data"
        if not data.exists():
            recording = [command, "record", "-r", "997", "-o", data, "--", python, KERNELS, "run", SECONDS, *batch]
            subprocess.run(recording, check=True, env=environment, stdout=subprocess.DEVNULL)
        rules_by_kernel.update(rules(command, data, {name: kernels[name] for name in batch}))
    return rules_by_kernel


def speedups(label, python, environment, actual):
    """Measures the changes; returns a row for each kernel, and the number of gains outside of the stated range."""
    comparison = [python, KERNELS, "compare", "all"]
    rows, failures = [], 0
    with subprocess.Popen(comparison, env=environment, stdout=subprocess.PIPE, text=True) as process:
        for name, factor in (line.split("\t") for line in process.stdout):
            rule, gain = actual[name]
            stated = " to ".join(map(str, gain)) if gain else "-"
            lower, upper = gain or (1.0, 1e9)
            is_outside = not lower * (1 - NOISE) <= float(factor) <= upper * (1 + NOISE)
            failures += is_outside
            if is_outside:
                print(f"{label}: {name}: {float(factor)} times faster, stated {stated}", flush=True)
            rows.append((rule, name, factor.strip(), label, time.strftime("%Y-%m-%d")))
    failures += process.returncode != 0
    return rows, failures


def table(command, columns, directory, has_speedups):
    rows, measured, failures = {}, [], 0
    for label, specification in columns:
        python, _, processor = specification.partition(",")
        processor = processor or "haswell"
        environment = dict(os.environ, NUMBA_CPU_NAME=processor, NUMBA_CPU_FEATURES="", NUMBA_NUM_THREADS="1")
        listing = subprocess.run(
            [python, KERNELS, "rules", "all"], check=True, env=environment, stdout=subprocess.PIPE, text=True
        ).stdout
        kernels = {name: rest for name, *rest in (row.split("\t") for row in listing.splitlines())}
        lines = {name: (int(first), int(last)) for name, (_, first, last, _) in kernels.items()}
        actual = column(command, python, environment, lines, directory / label.replace(" ", "-"))
        for name, (*_, expected) in kernels.items():
            rule, _ = actual[name]
            is_wrong = rule != expected
            failures += is_wrong
            if is_wrong:
                print(f"{label}: {name}: {rule}, expected {expected}", flush=True)
            rows.setdefault(name, {})[label] = f"{rule} (expected {expected})" if is_wrong else rule
        print(f"{label}: {len(kernels)} kernels", flush=True)
        if has_speedups:
            more_rows, broken = speedups(label, python, environment, actual)
            measured, failures = measured + more_rows, failures + broken
    return rows, measured, failures


def main(arguments):
    with tempfile.TemporaryDirectory(prefix="jitlisten-why-") as scratch:
        columns = [word.partition("=")[::2] for word in arguments.columns]
        directory = pathlib.Path(arguments.keep or scratch)
        rows, measured, failures = table(arguments.command, columns, directory, arguments.speedups is not None)
    with open(arguments.write, "w", encoding="utf-8") as file:
        print("kernel", *(label for label, _ in columns), sep="\t", file=file)
        for name, row in rows.items():
            print(name, *(row.get(label, "not run") for label, _ in columns), sep="\t", file=file)
    if arguments.speedups:
        with open(arguments.speedups, "w", encoding="utf-8") as file:
            print("rule", "kernel", "times faster", "numba", "date", sep="\t", file=file)
            for row in measured:
                print(*row, sep="\t", file=file)
    return min(failures, 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", help="jitlisten")
    parser.add_argument(
        "columns", nargs="+", metavar="LABEL=PYTHON[,PROCESSOR]", help="PROCESSOR: NUMBA_CPU_NAME, by default haswell"
    )
    parser.add_argument("--write", default=os.devnull, help="the table")
    parser.add_argument("--speedups", help="the table of measured changes")
    parser.add_argument("--keep", help="a directory for the recordings; those that are there are read, not made again")
    sys.exit(main(parser.parse_args()))
