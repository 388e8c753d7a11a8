#!/usr/bin/env python3
"""Compares `jitlisten record` with other profilers on eight programs, and rewrites records/peers.tsv.

    benches/peers.py JITLISTEN [ROUNDS]

JITLISTEN is the command. The Python that runs this script needs Numba; a profiler that is not installed beside it (or,
perf, in the system) has no rows. Every round runs each program once without a profiler, twice for A/A, and once with
each, in random order. The samplers ask for 199 samples per second. A row has medians over the rounds:

    processor time      of all processes of the run, relative to the run without a profiler
    memory, MB          that the largest process of the run has more at its peak
    output, KB          size of all files that the profiler has written
    first report, s     from the end of the run to a readable report, by the clock
    names, lines        compiled or interpreted functions that the report names, and whether it has the hottest line
    share               of the function that does 75 % of the work, in the two functions

Where the functions do the work in a fixed ratio of turns, the share is judged by turns. `-` means that the profiler has
no such result; memray counts allocations, not time.
"""

import datetime
import json
import os
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = ROOT / "records/peers.tsv"
COLUMNS = [
    "program", "tool", "version", "processor time", "memory, MB", "output, KB", "first report, s", "names", "lines",
    "share", "rounds", "load", "commit", "date",
]  # fmt: skip

FUNCTIONS = """
{decorator}
def three(x, n):
    for _ in range(3 * n):
        x = x * 0.999 + 1.0 / (x * x + 1.0)  # three
    return x

{decorator}
def one(x, n):
    for _ in range(n):
        x = x * 0.998 + 1.0 / (x * x + 2.0)  # one
    return x
"""
ALTERNATE = """
value = 1.0
for turn in range({turns}):
    value = three(value, {size} + turn % 7) + one(value, {size} + turn % 7)
"""
PROGRAMS = {
    "pass": "pass\n",
    "import numba": "import numba\n",
    "compiled": "import numba\n"
    + FUNCTIONS.format(decorator="@numba.njit")
    + ALTERNATE.format(turns=1200, size=60_000),
    "prange": "import numba\nimport numpy as np\n"
    + FUNCTIONS.format(decorator="@numba.njit")
    + """
@numba.njit(parallel=True)
def work(out, n):
    for i in numba.prange(out.size):
        out[i] = three(out[i], n + i % 7) + one(out[i], n + i % 7)

out = np.ones(256)
for turn in range(100):
    work(out, 3000)
""",
    "interpreted": FUNCTIONS.format(decorator="") + ALTERNATE.format(turns=300, size=2000),
    "in C": """
import hashlib
DATA = bytes(30_000)

def three(value, n):
    for _ in range(3 * n):
        value = hashlib.sha256(DATA).digest()  # three
    return value

def one(value, n):
    for _ in range(n):
        value = hashlib.sha256(DATA).digest()  # one
    return value

for turn in range(300):
    three(b"", 20 + turn % 7), one(b"", 20 + turn % 7)
""",
    "200 threads that nap": """
import threading, time

def nap():
    for _ in range(100):
        time.sleep(0.01)

threads = [threading.Thread(target=nap) for _ in range(200)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
""",
    "compiling": """
import numba
for number in range(12):
    space = {"numba": numba}
    exec(f"@numba.njit\\ndef f(x):\\n    total = {number}.5\\n    for i in range(x):\\n        total += i * total\\n"
         "    return total", space)
    space["f"](10)
""",
}


def hottest_line(text, name):
    return next((number for number, line in enumerate(text.splitlines(), 1) if line.endswith(f"# {name}")), None)


class Profile:
    """Time by function, and by line where the profiler has lines."""

    def __init__(self):
        self.functions, self.lines = dict.fromkeys(("three", "one"), 0.0), {}

    def add(self, name, line, amount):
        if name in self.functions:
            self.functions[name] += amount
            if line is not None:
                self.lines[line] = self.lines.get(line, 0.0) + amount


def add_line(profile, text, line, amount):
    """Adds the time of a line in the body of a function."""
    for name in profile.functions:
        hottest = hottest_line(text, name)
        if hottest is not None and hottest - 1 <= line <= hottest + 1:
            profile.add(name, line, amount)


def read_jitlisten(output, text):
    report = json.loads((output / "report").read_text())
    profile = Profile()
    for file in report["files"]:
        if file["path"].endswith("program.py"):
            for line in file["lines"]:
                # Time in C belongs to the line that has called it.
                add_line(profile, text, line["line"], line.get("total", line["self"]))
    return profile


def read_stacks(pattern):
    """Returns the reader of lines `FRAME;FRAME AMOUNT`. The pattern matches a frame's function and, if known, line."""

    def read(output, text):
        profile = Profile()
        for entry in (output / "data").read_text().splitlines():
            stack, _, amount = entry.rpartition(" ")
            for frame in reversed(stack.split(";")):
                match = re.search(pattern, frame)
                if match:
                    profile.add(match[1], int(match[2]) if match[2] else None, float(amount))
                    break
        return profile

    return read


# Frames of py-spy: `function (file:line)`.
read_py_spy = read_stacks(r"^(?:.*\b)?(three|one)\b.*?(?::(\d+)\))?$")
# Frames of austin: `file:function:line`.
read_austin = read_stacks(r":(three|one):(\d+)")


def read_scalene(output, text):
    profile = Profile()
    for path, file in json.loads((output / "data.json").read_text()).get("files", {}).items():
        if path.endswith("program.py"):
            for line in file["lines"]:
                amount = sum(line[f"n_cpu_percent_{kind}"] for kind in ("python", "c"))
                if amount:
                    add_line(profile, text, line["lineno"], amount)
    return profile


def read_pyinstrument(output, text):
    profile = Profile()

    def visit(frame):
        profile.add(frame["function"], None, frame["time"])
        for child in frame["children"]:
            visit(child)

    root = json.loads((output / "data").read_text())["root_frame"]
    if root is not None:
        visit(root)
    return profile


def read_perf(output, text):
    profile = Profile()
    for line in (output / "report").read_text().splitlines():
        match = re.match(r"\s*([\d.]+)%\s+\[.\]\s+(?:.*\b)?(three|one)\b", line)
        if match:
            profile.add(match[2], None, float(match[1]))
    return profile


def tools(jitlisten, bin_directory):
    """Returns for each tool the command that runs a program, the command that reports, and the reader of the result.
    `{out}` is the directory for files of the tool."""
    found = {
        "jitlisten record": (
            [jitlisten, "record", "-o", "{out}/data", "--"],
            [jitlisten, "lines", "--json", "-", "{out}/data"],
            read_jitlisten,
        )
    }
    peers = {
        "py-spy record --native": (
            "py-spy",
            ["record", "--native", "-r", "199", "-f", "raw", "-o", "{out}/data", "--"],
            None,
            read_py_spy,
        ),
        "austin": ("austin", ["-i", "5025", "-o", "{out}/data"], None, read_austin),
        "scalene --cpu": (
            "scalene",
            ["run", "--cpu-only", "--outfile", "{out}/data.json"],
            None,
            read_scalene,
        ),
        "memray run --native": (
            "memray",
            ["run", "-q", "--native", "-o", "{out}/data"],
            ["memray", "summary", "{out}/data"],
            None,
        ),
        "pyinstrument": ("pyinstrument", ["-i", "0.005025", "-r", "json", "-o", "{out}/data"], None, read_pyinstrument),
    }
    for name, (command, options, report, reader) in peers.items():
        if (bin_directory / command).exists():
            report = report and [str(bin_directory / report[0]), *report[1:]]
            found[name] = [str(bin_directory / command), *options], report, reader
    if shutil.which("perf"):
        found["perf record -g"] = (
            ["perf", "record", "-q", "-e", "task-clock:u", "-F", "199", "-g", "-o", "{out}/data", "--"],
            ["perf", "report", "--stdio", "--no-children", "-g", "none", "-F", "overhead,sym", "-i", "{out}/data"],
            read_perf,
        )
    return found


def version_of(command):
    text = subprocess.run([command, "--version"], capture_output=True, text=True)
    match = re.search(r"\d+\.\d+(\.\d+)?", text.stdout + text.stderr)
    return match[0] if match else "-"


def run_once(prefix, report, directory):
    """Runs the program below a tool. Returns processor time and time of the report in s, memory in MB, files in KB."""
    output = directory / "out"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    fill = lambda words: [word.replace("{out}", str(output)) for word in words]
    python = (
        [] if prefix and pathlib.Path(prefix[0]).name in ("scalene", "memray", "pyinstrument") else [sys.executable]
    )
    environment = {**os.environ, "NUMBA_NUM_THREADS": "4", "NUMBA_THREADING_LAYER": "workqueue"}
    environment["JITLISTEN_DIR"] = str(output)
    process = subprocess.Popen(
        [*fill(prefix), *python, str(directory / "program.py")],
        cwd=directory,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(errors.strip()[-300:] or f"status {process.returncode}")
    size = sum(path.lstat().st_size for path in output.rglob("*") if path.is_file())
    start = time.monotonic()
    if report:
        result = subprocess.run(fill(report), cwd=directory, env=environment, capture_output=True, text=True)
        if not (output / "report").exists():
            (output / "report").write_text(result.stdout)
    return {
        "cpu": usage.ru_utime + usage.ru_stime,
        "memory": usage.ru_maxrss / 1024,
        "output": size / 1024,
        "report": time.monotonic() - start,
    }


def describe(profile, text):
    """Returns the names, whether the lines are right, and the share in percent."""
    names = [name for name, amount in profile.functions.items() if amount]
    hottest = max(profile.lines, key=profile.lines.get, default=None)
    total = sum(profile.functions.values())
    has_lines = hottest is not None and hottest == hottest_line(text, "three")
    share = f"{100 * profile.functions['three'] / total:.0f}" if len(names) == 2 else "-"
    return ", ".join(names) or "none", "yes" if has_lines else "no", share


def measure_program(name, text, found, rounds, directory):
    (directory / "program.py").write_text(text)
    variants = {"none": ([], None, None), "none, again": ([], None, None), **found}
    results, profiles = {tool: [] for tool in variants}, {tool: [] for tool in variants}
    for number in range(rounds):
        for tool, (prefix, report, reader) in random.sample(list(variants.items()), len(variants)):
            try:
                # memray's report takes up to half a minute.
                is_reported = reader is not None or number == 0
                results[tool].append(run_once(prefix, report if is_reported else None, directory))
                if not is_reported:
                    results[tool][-1]["report"] = results[tool][0]["report"]
                if reader is not None and "# three" in text:
                    profiles[tool].append(reader(directory / "out", text))
            except (RuntimeError, OSError, ValueError, KeyError) as error:
                print(f"{name}, {tool}: {type(error).__name__}: {error}", file=sys.stderr)
    median = lambda tool, key: statistics.median(result[key] for result in results[tool])
    for tool in variants:
        if tool == "none" or not results[tool]:
            continue
        described = [describe(profile, text) for profile in profiles[tool]]
        names, lines, share = described[len(described) // 2] if described else ("-", "-", "-")
        yield {
            "program": name,
            "tool": tool,
            "processor time": f"{median(tool, 'cpu') / median('none', 'cpu'):.2f}",
            "memory, MB": f"{median(tool, 'memory') - median('none', 'memory'):+.0f}",
            "output, KB": f"{median(tool, 'output'):.0f}",
            "first report, s": f"{median(tool, 'report'):.2f}",
            "names": names,
            "lines": lines,
            "share": share,
        }


def main():
    jitlisten, rounds = str(pathlib.Path(sys.argv[1]).resolve()), int(sys.argv[2]) if len(sys.argv) > 2 else 3
    found = tools(jitlisten, pathlib.Path(sys.executable).parent)
    versions = {tool: version_of(prefix[0]) for tool, (prefix, _, _) in found.items()}
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    run = {
        "rounds": str(rounds),
        "load": f"{os.getloadavg()[0]:.0f}",
        "commit": commit.stdout.strip(),
        "date": datetime.date.today().isoformat(),
    }
    rows = []
    with tempfile.TemporaryDirectory(prefix="jitlisten-peers-") as directory:
        for name, text in PROGRAMS.items():
            for row in measure_program(name, text, found, rounds, pathlib.Path(directory)):
                rows.append({**row, **run, "version": versions.get(row["tool"], "-")})
                print("\t".join(rows[-1][column] for column in COLUMNS), flush=True)
    RECORD.write_text(
        "\n".join("\t".join(row) for row in [COLUMNS, *([row[key] for key in COLUMNS] for row in rows)]) + "\n"
    )


if __name__ == "__main__":
    main()
