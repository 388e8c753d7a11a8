#!/usr/bin/env python3
"""Renders docs/support.md, and the tables of BENCHMARKS.md, from the data in records/.

    ci/support.py                 writes both
    ci/support.py --check         fails if one of them differs from the data
    ci/support.py --seen LINES    fails if the file LINES of a test run lacks a row of records/integrations.tsv

Each file in records/ is a table of tab-separated values with one line of column names. The measuring scripts write
them.
"""

import collections
import csv
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORDS = ROOT / "records"
SUPPORT_PAGE, BENCHMARKS_PAGE = ROOT / "docs/support.md", ROOT / "BENCHMARKS.md"
BEGIN, END = "<!-- records: begin -->", "<!-- records: end -->"


def read_records(name):
    with open(RECORDS / f"{name}.tsv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def render_table(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def group_rows(rows, *columns):
    groups = collections.defaultdict(list)
    for row in rows:
        groups[tuple(row[column] for column in columns)].append(row)
    return groups.items()


def render_integrations():
    """Lists the tested integrations and consumers, and the pairs that were not tested."""
    seen = [(row["integration"], row["consumer"]) for row in read_records("integrations")]
    names, consumers = (list(dict.fromkeys(column)) for column in zip(*seen))
    missing = [f"{name} with {consumer}" for name in names for consumer in consumers if (name, consumer) not in seen]
    lists = f"* Integrations: {', '.join(names)}.\n* Consumers: {', '.join(consumers)}.\n"
    return lists + (f"* Not tested: {', '.join(missing)}.\n" if missing else "")


def select_hosts(by_hand):
    return [row for row in read_records("hosts") if (row["run by"] == "by hand") == by_hand]


def render_tested_hosts():
    cells = [
        [row["program"], ", ".join(filter(None, (row["llvm"], row["linker"]))), row["found"], row["note"]]
        for row in select_hosts(by_hand=False)
    ]
    return render_table(["program", "LLVM, linker", "found", "note"], cells)


def render_hosts_by_hand():
    """Lists the programs, with the number of objects found, and the note."""
    rows = select_hosts(by_hand=True)
    return "".join(f"* {row['program']}: {'; '.join(filter(None, (row['found'], row['note'])))}\n" for row in rows)


def render_systems():
    rows = []
    for (system, commit, date), runs in group_rows(read_records("systems"), "system", "commit", "date"):
        rows.append([system, f"{sum(run['result'] == 'ok' for run in runs)} of {len(runs)}", commit, date])
    runs = read_records("aarch64")
    rows.append(
        [
            "Debian 13, aarch64, emulated",
            f"{sum(run['result'] == 'ok' for run in runs)} of {len(runs)}",
            runs[0]["commit"],
            runs[0]["date"],
        ]
    )
    return render_table(["system", "scenarios that passed", "commit", "date"], rows)


def render_same_code():
    runs = [{**row, **parse_numba_version(row["numba"])} for row in read_records("same-code")]
    releases, llvms, pythons = (
        ", ".join(sorted({run[column] for run in runs}, key=version_key)) for column in ("release", "llvm", "python")
    )
    objects = sum(int(run["objects"]) for run in runs)
    different = sum(int(run["objects with other code"].split()[0]) for run in runs)
    return f"""{objects:,} objects were compiled with and without line tables; {different or "none"} had other code.

* Numba {releases}.
* LLVM {llvms}; Python {pythons}.
"""


def version_key(version):
    return [int(part) for part in version.split(".")]


def parse_numba_version(text):
    """Parses `0.68.1 (22), 3.11` into the versions of Numba, LLVM and Python."""
    release, llvm, python = text.replace("(", "").replace("),", "").split()
    return {"release": release, "llvm": llvm, "python": python}


def render_suites():
    """Lists the suites of each mode, with the modules whose result differs."""
    modes = collections.defaultdict(list)
    for (environment, mode), runs in group_rows(read_records("suites"), "environment", "mode"):
        differing_modules = ", ".join(
            run["module"].rsplit(".", 1)[-1]
            for run in runs
            if run["failed without"] != run["failed with"] and run["failed without"].isdigit()
        )
        modes[mode].append(
            f"{environment} ({sum(int(run['tests']) for run in runs)}{differing_modules and ': ' + differing_modules})"
        )
    return "".join(f"* {mode}: {'; '.join(suites)}\n" for mode, suites in modes.items())


def render_coverage():
    rows = []
    for row in read_records("coverage"):
        lines = f"{row['covered without']}, {row['covered with']}, {row['as Python']} of {row['statements']}"
        branches = f"{row['taken without']}, {row['taken with']}, {row['taken as Python']} of {row['branches']}"
        differing = f"{row['lines that differ in functions that ran both ways']}, {row['branches that do']}"
        rows.append([row["suite"], row["tests"], row["other results"], lines, branches, differing])
    return render_table(
        ["suite", "tests", "with another result", "statements", "branches", "statements, branches that differ"], rows
    )


def render_support_page():
    return f"""# What was tested

Rendered by `ci/support.py` from `records/`, which has version, commit, date and figure of each run.

## Versions

CI runs Numba 0.68.1, 0.60.0, 0.57.1 and 0.56.4 on Python 3.10 to 3.13, the wheel on Python 3.8 to 3.13, and LLVM 14,
15, 16, 19 and 22 linked into C++ programs. It uses the real tools: perf 6.1, gdb 13, py-spy 0.4, pystack 1.7, bpftrace
0.17, memray 1.20, heaptrack 1.4, lldb 19, valgrind 3.19, elfutils 0.188, libunwind 1.6, libgcc 12 and LLVM's libunwind
19. `make` lists the longer lanes.

## Integrations and consumers

Each consumer shows a chain of compiled functions, with names and the whole stack, from each integration:

{render_integrations()}
## Systems

The scenarios are perf, gdb, py-spy, unwinders, forks, threads, the cache, recorded Python functions and the installed
library, with the tools of that system. Debian unstable has Python 3.14 and 3.15. Python functions are also recorded on
a free-threaded Python 3.13 (`ci/free-threaded.sh`).

{render_systems()}
## LLVM hosts

Unmodified programs: exit status and output are the same with and without jitlisten. *Found* is the number of compiled
objects that jitlisten found, of those that the host itself, gdb or strace counted.

By `make test` and `make test-hosts`:

{render_tested_hosts()}
By hand (`records/hosts.tsv` has the LLVM and linker of each):

{render_hosts_by_hand()}
## Line tables do not change Numba's code

{render_same_code()}
Numba 0.56 (LLVM 11) pads jumps differently with lines; it has lines only with `JITLISTEN_LINES=force`.

## Test suites of others

Each module runs with and without jitlisten. In parentheses: the number of tests, and modules with another result.

{render_suites()}
`test_debuginfo` expects no debug information without `debug=True`. `test_gdb_dwarf` fails while it is recorded, because
gdb stops at the sampler's signal. CPython's `test_threading` and `test_subprocess` notice a recording's thread
(a warning at `fork`), two descriptors in a recorded child, and with `PYTHONUNBUFFERED=1` writes that a signal has cut
short.

## Coverage of compiled code

Parts of test suites under `pytest --cov --cov-branch`: without the plugin, with it, and with
`NUMBA_DISABLE_JIT=1` (as Python). The last column compares the functions that ran both ways.
[Coverage](coverage.md) says where its differences come from.

{render_coverage()}"""


def render_costs():
    rows = [
        [row["what"], row["target"], row["today"], row["met"], f"`{row['command']}`"]
        for row in read_records("benchmarks")
    ]
    return render_table(["cost", "target", "today", "met", "measured by"], rows)


def render_other_samplers():
    rows = []
    for (program, tool), runs in group_rows(read_records("beside"), "program", "tool"):
        run = runs[-1]
        error = f"{run['error, points']} ({run['sigma']})"
        rows.append([program, tool, run["below one of both"], error, run["processor time"], run["python"]])
    header = ["program", "sampler", "samples", "error, points (sigma)", "processor time", "Python"]
    return render_table(header, rows)


def render_peers():
    """One row for each profiler: a range over the programs, and the result for the program of compiled code."""
    rows = []
    for (tool,), runs in group_rows(read_records("peers"), "tool"):
        ratios, sizes = ([float(run[name]) for run in runs] for name in ("processor time", "memory, MB"))
        compiled = next((run for run in runs if run["program"] == "compiled"), None)
        details = ("output, KB", "first report, s", "names", "lines", "share")
        span = f"{min(ratios):.2f} to {max(ratios):.2f} ({runs[ratios.index(max(ratios))]['program']})"
        memory = f"{min(sizes):+.0f} to {max(sizes):+.0f}"
        version = "" if runs[0]["version"] == "-" else f" {runs[0]['version']}"
        rows.append([tool + version, span, memory, *(compiled[name] if compiled else "-" for name in details)])
    header = ["profiler", "processor time", "memory, MB", "output, KB", "first report, s", "names", "lines", "share, %"]
    return render_table(header, rows)


def render_pages():
    rendered, text = "", BENCHMARKS_PAGE.read_text(encoding="utf-8")
    for new_table in (render_costs(), render_other_samplers(), render_peers()):
        head, rest = text.split(f"{BEGIN}\n", 1)
        tail = rest.split(END, 1)[1]
        rendered += f"{head}{BEGIN}\n{new_table}{END}"
        text = tail
    return {SUPPORT_PAGE: render_support_page(), BENCHMARKS_PAGE: rendered + text}


def missing_pairs(lines):
    seen_pairs = set(pathlib.Path(lines).read_text(encoding="utf-8").splitlines())
    return [
        pair
        for pair in (f"{row['integration']}\t{row['consumer']}" for row in read_records("integrations"))
        if pair not in seen_pairs
    ]


def main(arguments):
    if arguments[:1] == ["--seen"]:
        missing = missing_pairs(arguments[1])
        for pair in missing:
            print("support: not seen in this run:", pair.replace("\t", ", "))
        return 1 if missing else 0
    stale = [
        path for path, text in render_pages().items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if arguments == ["--check"]:
        for path in stale:
            print(f"support: {path.relative_to(ROOT)} is not what records/ says: run ci/support.py")
        return 1 if stale else 0
    for path, text in render_pages().items():
        path.write_text(text, encoding="utf-8")
    return 0


sys.exit(main(sys.argv[1:]))
