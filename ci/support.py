#!/usr/bin/env python3
"""Renders docs/support.md, and the tables of BENCHMARKS.md, from the data in records/.

    ci/support.py                 writes both
    ci/support.py --check         fails if they are not what records/ says
    ci/support.py --seen LINES    fails if a run of the tests did not see every line of records/integrations.tsv

Each file in records/ is a table of tab-separated values with one line of column names. The scripts that measure write
them.
"""

import collections
import csv
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORDS = ROOT / "records"
PAGE, COSTS = ROOT / "docs/support.md", ROOT / "BENCHMARKS.md"
BEGIN, END = "<!-- records: begin -->", "<!-- records: end -->"


def records(name):
    with open(RECORDS / f"{name}.tsv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def table(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def grouped(rows, *columns):
    groups = collections.defaultdict(list)
    for row in rows:
        groups[tuple(row[column] for column in columns)].append(row)
    return groups.items()


def integrations():
    """Every pair of an integration and a consumer, or the pairs that are missing."""
    seen = [(row["integration"], row["consumer"]) for row in records("integrations")]
    names, consumers = (list(dict.fromkeys(column)) for column in zip(*seen))
    missing = [f"{name} with {consumer}" for name in names for consumer in consumers if (name, consumer) not in seen]
    lists = f"* Integrations: {', '.join(names)}.\n* Consumers: {', '.join(consumers)}.\n"
    return lists + (f"* Not tested: {', '.join(missing)}.\n" if missing else "")


def hosts(by_hand):
    rows = [row for row in records("hosts") if (row["run by"] == "by hand") == by_hand]
    cells = [
        [row["program"], ", ".join(filter(None, (row["llvm"], row["linker"]))), row["found"], row["note"]]
        for row in rows
    ]
    return table(["program", "LLVM, linker", "found", "note"], cells)


def systems():
    rows = []
    for (system, commit, date), runs in grouped(records("systems"), "system", "commit", "date"):
        rows.append([system, f"{sum(run['result'] == 'ok' for run in runs)} of {len(runs)}", commit, date])
    runs = records("aarch64")
    rows.append(
        [
            "Debian 13, aarch64, emulated",
            f"{sum(run['result'] == 'ok' for run in runs)} of {len(runs)}",
            "",
            runs[0]["date"],
        ]
    )
    return table(["system", "scenarios that passed", "commit", "date"], rows)


def same_code():
    runs = [{**row, **numba_of(row["numba"])} for row in records("same-code")]
    releases, llvms, pythons = (
        ", ".join(sorted({run[column] for run in runs}, key=numbers)) for column in ("release", "llvm", "python")
    )
    objects = sum(int(run["objects"]) for run in runs)
    other = sum(int(run["objects with other code"].split()[0]) for run in runs)
    return f"""{objects:,} objects were compiled with and without line tables; {other or "none"} had other code.

* Numba {releases}.
* LLVM {llvms}; Python {pythons}.
"""


def numbers(version):
    return [int(part) for part in version.split(".")]


def numba_of(text):
    """`0.68.1 (22), 3.11`: release, LLVM, Python."""
    release, llvm, python = text.replace("(", "").replace("),", "").split()
    return {"release": release, "llvm": llvm, "python": python}


def suites():
    rows = []
    for (environment, mode), runs in grouped(records("suites"), "environment", "mode"):
        other = [
            run["module"].rsplit(".", 1)[-1]
            for run in runs
            if run["failed without"] != run["failed with"] and run["failed without"].isdigit()
        ]
        rows.append([environment, mode, len(runs), sum(int(run["tests"]) for run in runs), ", ".join(other) or "none"])
    return table(["suite", "mode", "modules", "tests", "modules with another result"], rows)


def coverage():
    rows = []
    for row in records("coverage"):
        lines = f"{row['covered without']}, {row['covered with']}, {row['as Python']} of {row['statements']}"
        branches = f"{row['taken without']}, {row['taken with']}, {row['taken as Python']} of {row['branches']}"
        rows.append([row["suite"], row["tests"], row["other results"], lines, branches, row["covered only as Python"]])
    return table(["suite", "tests", "with another result", "statements", "branches", "statements only as Python"], rows)


def page():
    return f"""# What was tested

Rendered by `ci/support.py` from `records/`, which has version, commit, date and figure of each run, and who counted.

## Versions

CI runs Numba 0.68.1, 0.60.0, 0.57.1 and 0.56.4 on Python 3.10 to 3.13, the wheel on Python 3.8 to 3.13, and LLVM 14,
15, 16, 19 and 22 linked into C++ programs. It uses the real tools: perf 6.1, gdb 13, py-spy 0.4, pystack 1.7, bpftrace
0.17, memray 1.20, heaptrack 1.4, lldb 19, valgrind 3.19, elfutils 0.188, libunwind 1.6, libgcc 12 and LLVM's libunwind
19. `make` lists the longer lanes.

## Integrations and consumers

Each consumer shows a chain of compiled functions, with names and the whole stack, from each integration:

{integrations()}
## Systems

The scenarios are perf, gdb, py-spy, unwinders, forks, threads, the cache, recorded Python functions and the installed
library, with the tools of that system. Debian unstable has Python 3.14 and 3.15. Python functions are also recorded on
a free-threaded Python 3.13 (`ci/free-threaded.sh`).

{systems()}
## LLVM hosts

Unmodified programs: exit status and output are the same with and without jitlisten. *Found* is the number of compiled
objects that jitlisten found, of those that the host itself, gdb or strace counted.

By `make test` and `make test-hosts`:

{hosts(by_hand=False)}
By hand:

{hosts(by_hand=True)}
## Line tables do not change Numba's code

{same_code()}
Numba 0.56 (LLVM 11) pads jumps differently with lines; it has lines only with `JITLISTEN_LINES=force`.

## Test suites of others

Each module runs with and without jitlisten; every test must have the same result.

{suites()}
`test_debuginfo` expects no debug information without `debug=True`. `test_gdb_dwarf` fails while it is recorded, because
gdb stops at the sampler's signal. CPython's `test_threading` and `test_subprocess` notice a recording's thread
(a warning at `fork`), two descriptors in a recorded child, and with `PYTHONUNBUFFERED=1` writes that a signal has cut
short.

## Coverage of compiled code

Parts of three test suites under `pytest --cov --cov-branch`: without the plugin, with it, and with
`NUMBA_DISABLE_JIT=1` (as Python), where some tests fail.

{coverage()}"""


def costs():
    rows = [
        [row["what"], row["target"], row["today"], row["met"], f"`{row['command']}`"] for row in records("benchmarks")
    ]
    return table(["cost", "target", "today", "met", "measured by"], rows)


def beside():
    rows = []
    for (program, tool), runs in grouped(records("beside"), "program", "tool"):
        run = runs[-1]
        error = f"{run['error, points']} ({run['sigma']})"
        rows.append([program, tool, run["below one of both"], error, run["processor time"], run["python"]])
    header = ["program", "sampler", "samples", "error, points (sigma)", "processor time", "Python"]
    return table(header, rows)


def rendered():
    done, text = "", COSTS.read_text(encoding="utf-8")
    for made in (costs(), beside()):
        before, rest = text.split(f"{BEGIN}\n", 1)
        after = rest.split(END, 1)[1]
        done += f"{before}{BEGIN}\n{made}{END}"
        text = after
    return {PAGE: page(), COSTS: done + text}


def missing(lines):
    seen = set(pathlib.Path(lines).read_text(encoding="utf-8").splitlines())
    return [
        pair
        for pair in (f"{row['integration']}\t{row['consumer']}" for row in records("integrations"))
        if pair not in seen
    ]


def main(arguments):
    if arguments[:1] == ["--seen"]:
        unseen = missing(arguments[1])
        for pair in unseen:
            print("support: not seen in this run:", pair.replace("\t", ", "))
        return 1 if unseen else 0
    stale = [path for path, text in rendered().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if arguments == ["--check"]:
        for path in stale:
            print(f"support: {path.relative_to(ROOT)} is not what records/ says: run ci/support.py")
        return 1 if stale else 0
    for path, text in rendered().items():
        path.write_text(text, encoding="utf-8")
    return 0


sys.exit(main(sys.argv[1:]))
