#!/usr/bin/env python3
"""The rule of each kernel of kernels.py, by release of Numba and by processor.

A row for each kernel: `RULE` where the advice is the expected one and no other, else `RULE (expected ...)`, and the
status is 1.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

KERNELS = pathlib.Path(__file__).resolve().parent / "kernels.py"
#: Kernels of one recording: a loop with less than 1 % of the samples is not looked at.
BATCH = 24
SECONDS = "0.35"


def rules(command, data, names):
    """By kernel: the rules of the loops in its lines."""
    found = json.loads(
        subprocess.run([command, "lines", "--json", "-", data], check=True, stdout=subprocess.PIPE).stdout
    )
    lines = [line for file in found["files"] if file["path"] == str(KERNELS) for line in file["lines"]]
    loops = [loop for line in lines for loop in line["loops"]]
    near = {
        name: [loop for loop in loops if loop["first"] <= last and first <= loop["last"]]
        for name, (first, last) in names.items()
    }
    said = {name: {advice["rule"] for loop in near[name] for advice in loop["advice"]} for name in names}
    return {name: ", ".join(sorted(said[name])) or ("-" if near[name] else "no loop") for name in names}


def column(command, python, processor, kernels, directory):
    found, names = {}, list(kernels)
    directory.mkdir(parents=True, exist_ok=True)
    environment = dict(
        os.environ, NUMBA_CPU_NAME=processor, NUMBA_CPU_FEATURES="", NUMBA_CACHE_DIR=str(directory),
        NUMBA_NUM_THREADS="1", JITLISTEN_DIR=str(directory),
    )
    for at in range(0, len(names), BATCH):
        batch = names[at : at + BATCH]
        data = directory / f"{batch[0]}.data"
        if not data.exists():
            recording = [command, "record", "-r", "997", "-o", data, "--", python, KERNELS, "run", SECONDS, *batch]
            subprocess.run(recording, check=True, env=environment, stdout=subprocess.DEVNULL)
        found.update(rules(command, data, {name: kernels[name] for name in batch}))
    return found


def table(command, columns, directory):
    rows, bad = {}, 0
    for label, what in columns:
        python, _, processor = what.partition(",")
        processor = processor or "haswell"
        environment = dict(os.environ, NUMBA_CPU_NAME=processor, NUMBA_CPU_FEATURES="")
        said = subprocess.run(
            [python, KERNELS, "rules", "all"], check=True, env=environment, stdout=subprocess.PIPE, text=True
        ).stdout
        kernels = {name: rest for name, *rest in (row.split("\t") for row in said.splitlines())}
        lines = {name: (int(first), int(last)) for name, (_, first, last, _) in kernels.items()}
        found = column(command, python, processor, lines, directory / label.replace(" ", "-"))
        for name, (*_, expected) in kernels.items():
            is_bad = found[name] != expected
            bad += is_bad
            if is_bad:
                print(f"{label}: {name}: {found[name]}, expected {expected}", flush=True)
            rows.setdefault(name, {})[label] = f"{found[name]} (expected {expected})" if is_bad else found[name]
        print(f"{label}: {len(kernels)} kernels", flush=True)
    return rows, bad


def main(arguments):
    with tempfile.TemporaryDirectory(prefix="jitlisten-why-") as scratch:
        columns = [word.partition("=")[::2] for word in arguments.columns]
        rows, bad = table(arguments.command, columns, pathlib.Path(arguments.keep or scratch))
    with open(arguments.write, "w", encoding="utf-8") as file:
        print("kernel", *(label for label, _ in columns), sep="\t", file=file)
        for name, row in rows.items():
            print(name, *(row.get(label, "not run") for label, _ in columns), sep="\t", file=file)
    return min(bad, 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", help="jitlisten")
    parser.add_argument(
        "columns", nargs="+", metavar="LABEL=PYTHON[,PROCESSOR]", help="PROCESSOR: NUMBA_CPU_NAME, by default haswell"
    )
    parser.add_argument("--write", default=os.devnull, help="the table")
    parser.add_argument("--keep", help="a directory for the recordings; those that are there are read, not made again")
    sys.exit(main(parser.parse_args()))
