#!/usr/bin/env python3
"""Runs the commands of README.md and docs/*.md as written: in a scratch directory, with the command `jitlisten` and a
Python with Numba in PATH.

    ci/docs.py BIN [PAGE...]        BIN: the directory with `jitlisten` and `python`; pages: all of them by default
    ci/docs.py --check [PAGE...]    runs nothing: every block of commands says whether it is run, and if not, why;
                                    and the files and tests of tests/safeguards.tsv exist

A block of commands (```sh, ```python, ```c) has one of these in the line before it:

    <!-- run -->, <!-- run, expect: TEXT -->    it is run; TEXT must be in its output
    <!-- run, process, expect: TEXT -->         the same, with 4711 replaced by the number of a process that runs the
                                                program of docs/gdb.md
    <!-- file NAME -->                          it is written to NAME
    <!-- rule NAME -->                          benches/why/pages.py runs all of them and looks at the advice they get
    <!-- not run: REASON -->                    and another test does so, or none can

A block that is no commands is marked as ```text, ```console or the like: one without any word could be commands, and is
refused.

The blocks of a page run one after the other in one directory, which begins with the `prog.py` of docs/perf.md.
"""

import csv
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
MARK = re.compile(
    r"<!-- (?:file (?P<file>[\w.-]+)|run(?P<process>, process)?(?:, expect: (?P<expect>.*?))?|not run:"
    r" (?P<reason>.+?)|rule (?P<rule>[\w-]+)) -->"
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
COMMANDS = ("sh", "python", "c", "cpp", "rust")
PROCESS = "4711"


class Block:
    def __init__(self, page, match, text):
        self.page, self.line = page, text.count("\n", 0, match.start()) + 1
        self.language, self.text = match.group(1), match.group(2)
        # The comment that ends in the line before.
        _, comment, rest = text[: match.start()].rstrip("\n").rpartition("<!--")
        marked = MARK.fullmatch((comment + rest).replace("\n", " "))
        self.mark = marked.groupdict() if marked else None

    def is_run(self):
        return self.mark is not None and not any(self.mark[other] for other in ("file", "reason", "rule"))


def blocks(page):
    text = page.read_text(encoding="utf-8")
    return [Block(page, match, text) for match in FENCE.finditer(text)]


def written(page, name):
    return next(block.text for block in blocks(ROOT / "docs" / page) if block.mark and block.mark["file"] == name)


def check(page):
    """Every block of commands is run, or says why not; every block says what it is."""
    bad = [block for block in blocks(page) if not block.language or (block.language in COMMANDS and block.mark is None)]
    for block in bad:
        what = "neither run nor a reason why not" if block.language else "says not what language it is in"
        print(f"docs: {page.name}:{block.line}: {what}")
    return len(bad)


def rules(*words):
    """With `--check`, the sections of docs/why-rules.md are those of the kernels and of the measured figures; with
    `--run`, the advice for them is right."""
    return subprocess.run([sys.executable, ROOT / "benches/why/pages.py", *words]).returncode


def check_mutations():
    """Each edit of tests/mutations.toml fits one place of its file."""
    with open(ROOT / "tests/mutations.toml", "rb") as file:
        mutations = tomllib.load(file)["mutation"]
    misfits = [
        one["safeguard"] for one in mutations if (ROOT / one["file"]).read_text(encoding="utf-8").count(one["old"]) != 1
    ]
    for safeguard in misfits:
        print(f"docs: tests/mutations.toml: the edit for {safeguard!r} does not fit one place of its file")
    return len(misfits)


def check_safeguards():
    """The files and tests of tests/safeguards.tsv exist: files in a crate, whose `src` is omitted, or in that of
    jitlisten."""
    bad = []
    sources = [
        path
        for folder in (
            "tests/tests",
            *(f"{crate.parent.name}/{kind}" for crate in ROOT.glob("*/Cargo.toml") for kind in ("src", "tests")),
        )
        for path in (ROOT / folder).rglob("*.rs")
    ]
    sources += (ROOT / "python/tests").rglob("test_*.py")
    tests = {path.stem for path in sources}.union(
        *(re.findall(r"(?:fn|def) (\w+)\(", path.read_text(encoding="utf-8")) for path in sources)
    )
    with open(ROOT / "tests/safeguards.tsv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            for name in row["where"].split(", "):
                crate, _, rest = name.partition("/")
                if not any(
                    path.is_file() for path in (ROOT / "jitlisten/src" / name, ROOT / crate / "src" / rest, ROOT / name)
                ):
                    bad.append(f"no file {name}")
            bad += [
                f"no test {name}"
                for name in row["tests"].split(", ")
                if name != "unit tests" and not tests.issuperset(name.split("::"))
            ]
    for what in bad:
        print(f"docs: tests/safeguards.tsv: {what}")
    return len(bad)


class Process:
    """A program that computes in code that Numba has compiled, and knows nothing of jitlisten."""

    def __init__(self, scratch, environment):
        self.scratch, self.environment = scratch, environment

    def __enter__(self):
        pathlib.Path(self.scratch, "endless.py").write_text(written("gdb.md", "prog.py"), encoding="utf-8")
        self.child = subprocess.Popen(
            ["python", "endless.py"], cwd=self.scratch, env=self.environment, stdin=subprocess.DEVNULL
        )
        # Compiled code is anonymous memory that may be executed.
        has_code = re.compile(r"^\S+ r-xp 00000000 00:00 0\s*$", re.M)
        until = time.monotonic() + 120
        while not has_code.search(
            pathlib.Path(f"/proc/{self.child.pid}/maps").read_text(encoding="utf-8", errors="replace")
        ):
            if self.child.poll() is not None or time.monotonic() > until:
                raise SystemExit("docs: the program of docs/gdb.md does not run")
            time.sleep(0.1)
        return self.child.pid

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()


def run(block, scratch, environment):
    text = block.text
    command = ["python", "-c", text] if block.language == "python" else ["bash", "-e", "-o", "pipefail", "-c", text]

    def once():
        # Into a file: where the output is a pipe, perf record writes its data there.
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            status = subprocess.run(
                command,
                cwd=scratch,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=600,
            ).returncode
            output.seek(0)
            return status, output.read()

    if block.mark["process"]:
        with Process(scratch, environment) as pid:
            command[-1] = text.replace(PROCESS, str(pid))
            status, output = once()
    else:
        status, output = once()
    expected = block.mark["expect"] or ""
    if status == 0 and expected in output:
        return 0
    print(
        f"docs: {block.page.name}:{block.line}: status {status}, expected {expected!r} in the output"
        f" of:\n{text}\n{output[-4000:]}"
    )
    return 1


def run_page(page, bin_directory):
    to_run = [block for block in blocks(page) if block.mark and (block.is_run() or block.mark["file"])]
    failures = 0
    with tempfile.TemporaryDirectory(prefix="jitlisten-docs-") as scratch:
        pathlib.Path(scratch, "prog.py").write_text(written("perf.md", "prog.py"), encoding="utf-8")
        environment = dict(os.environ, PATH=f"{bin_directory}:{os.environ['PATH']}", NUMBA_CACHE_DIR=scratch + "/cache")
        for block in to_run:
            if block.mark["file"]:
                pathlib.Path(scratch, block.mark["file"]).write_text(block.text, encoding="utf-8")
            else:
                failures += run(block, scratch, environment)
    if any(block.mark and block.mark["rule"] for block in blocks(page)):
        failures += rules("--run", bin_directory)
    print(f"docs: {page.name}: {sum(block.is_run() for block in to_run)} blocks run, {failures} failed", flush=True)
    return failures


def main():
    pages = [pathlib.Path(name).resolve() for name in sys.argv[2:]] or [
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
    ]
    bad = sum(check(page) for page in pages) + check_safeguards() + check_mutations() + rules("--check")
    if sys.argv[1] != "--check":
        bad += sum(run_page(page, os.path.abspath(sys.argv[1])) for page in pages)
    sys.exit(1 if bad else 0)


main()
