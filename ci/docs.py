#!/usr/bin/env python3
"""Runs the commands in README.md and docs/*.md as written, in a scratch directory, with the command `jitlisten` and a
Python with Numba in PATH.

    ci/docs.py BIN [PAGE...]        BIN: directory of `jitlisten` and `python`; pages: all by default
    ci/docs.py --check [PAGE...]    runs nothing; checks that every command block is run or gives a reason, and that the
                                    files and tests in tests/safeguards.tsv exist

The line before a command block (```sh, ```python, ```c) contains one of these comments:

    <!-- run -->, <!-- run, expect: TEXT -->    runs the block; the output must contain TEXT
    <!-- run, process, expect: TEXT -->         replaces 4711 with the PID of a process that runs the program of
                                                docs/gdb.md, and runs the block
    <!-- file NAME -->                          writes the block to the file NAME
    <!-- rule NAME -->                          benches/why/pages.py runs the block and checks the advice for it
    <!-- not run: REASON -->                    another test runs the block, or no test can

Other blocks are marked as ```text, ```console or similar. A block without a language could contain commands and is an
error.

The blocks of a page run in order in one directory, which initially contains the `prog.py` of docs/perf.md. For a page
with `pkg-config`, the libraries in target/release (`BUILT`) are installed first.
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
    def __init__(self, page, fence_match, text):
        self.page, self.line = page, text.count("\n", 0, fence_match.start()) + 1
        self.language, self.text = fence_match.group(1), fence_match.group(2)
        # Parse the comment on the line before the block.
        _, comment, rest = text[: fence_match.start()].rstrip("\n").rpartition("<!--")
        mark_match = MARK.fullmatch((comment + rest).replace("\n", " "))
        self.mark = mark_match.groupdict() if mark_match else None

    def is_run(self):
        return self.mark is not None and not any(self.mark[key] for key in ("file", "reason", "rule"))


def blocks(page):
    text = page.read_text(encoding="utf-8")
    return [Block(page, match, text) for match in FENCE.finditer(text)]


def file_block(page, name):
    return next(block.text for block in blocks(ROOT / "docs" / page) if block.mark and block.mark["file"] == name)


def check(page):
    """Prints command blocks without a comment, and blocks without a language; returns their number."""
    unmarked = [
        block for block in blocks(page) if not block.language or (block.language in COMMANDS and block.mark is None)
    ]
    for block in unmarked:
        problem = "neither run nor a reason why not" if block.language else "says not what language it is in"
        print(f"docs: {page.name}:{block.line}: {problem}")
    return len(unmarked)


def check_rules(*arguments):
    """With `--check`, compares the sections of docs/why-rules.md with the kernels and the measured figures.
    With `--run`, checks the advice for each kernel."""
    return subprocess.run([sys.executable, ROOT / "benches/why/pages.py", *arguments]).returncode


def check_mutations():
    """Checks that each edit of tests/mutations.toml matches exactly one place in its file."""
    with open(ROOT / "tests/mutations.toml", "rb") as file:
        mutations = tomllib.load(file)["mutation"]
    misfitting = [
        mutation["safeguard"]
        for mutation in mutations
        if (ROOT / mutation["file"]).read_text(encoding="utf-8").count(mutation["old"]) != 1
    ]
    for safeguard in misfitting:
        print(f"docs: tests/mutations.toml: the edit for {safeguard!r} does not fit one place of its file")
    return len(misfitting)


def check_safeguards():
    """Checks that the files and tests in tests/safeguards.tsv exist. Files are relative to jitlisten/src, or begin with
    the name of a crate, whose `src` is omitted."""
    problems = []
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
                    problems.append(f"no file {name}")
            problems += [
                f"no test {name}"
                for name in row["tests"].split(", ")
                if name != "unit tests" and not tests.issuperset(name.split("::"))
            ]
    for problem in problems:
        print(f"docs: tests/safeguards.tsv: {problem}")
    return len(problems)


class Process:
    """A running program that spends its time in code compiled by Numba, started without jitlisten."""

    def __init__(self, scratch, environment):
        self.scratch, self.environment = scratch, environment

    def __enter__(self):
        pathlib.Path(self.scratch, "endless.py").write_text(file_block("gdb.md", "prog.py"), encoding="utf-8")
        self.child = subprocess.Popen(
            ["python", "endless.py"], cwd=self.scratch, env=self.environment, stdin=subprocess.DEVNULL
        )
        # Compiled code is in anonymous executable memory.
        has_code = re.compile(r"^\S+ r-xp 00000000 00:00 0\s*$", re.M)
        deadline = time.monotonic() + 600
        while not has_code.search(
            pathlib.Path(f"/proc/{self.child.pid}/maps").read_text(encoding="utf-8", errors="replace")
        ):
            if self.child.poll() is not None or time.monotonic() > deadline:
                status = self.child.poll()
                self.__exit__()
                raise SystemExit(
                    f"docs: the program of docs/gdb.md has not compiled its function; exit status: {status}"
                )
            time.sleep(0.1)
        return self.child.pid

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()


def run(block, scratch, environment):
    text = block.text
    command = ["python", "-c", text] if block.language == "python" else ["bash", "-e", "-o", "pipefail", "-c", text]

    def run_command():
        # Use a file for the output, because perf record writes its data to standard output if that is a pipe.
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
            status, output = run_command()
    else:
        status, output = run_command()
    expected_text = block.mark["expect"] or ""
    if status == 0 and expected_text in output:
        return 0
    print(
        f"docs: {block.page.name}:{block.line}: status {status}, expected {expected_text!r} in the output"
        f" of:\n{text}\n{output[-4000:]}"
    )
    return 1


def install(prefix, environment):
    """Installs the libraries that were built in ``BUILT`` (default: target/release), as `make install` does."""
    subprocess.run([ROOT / "capi/install.sh", "install"], env=dict(os.environ, PREFIX=prefix), check=True)
    environment.update(PKG_CONFIG_PATH=f"{prefix}/lib/pkgconfig", LD_LIBRARY_PATH=f"{prefix}/lib")


def run_page(page, bin_directory):
    runnable = [block for block in blocks(page) if block.mark and (block.is_run() or block.mark["file"])]
    failures = 0
    with tempfile.TemporaryDirectory(prefix="jitlisten-docs-") as scratch:
        pathlib.Path(scratch, "prog.py").write_text(file_block("perf.md", "prog.py"), encoding="utf-8")
        environment = dict(os.environ, PATH=f"{bin_directory}:{os.environ['PATH']}", NUMBA_CACHE_DIR=scratch + "/cache")
        if any("pkg-config" in block.text for block in runnable):
            install(f"{scratch}/prefix", environment)
        for block in runnable:
            if block.mark["file"]:
                pathlib.Path(scratch, block.mark["file"]).write_text(block.text, encoding="utf-8")
            else:
                failures += run(block, scratch, environment)
    if any(block.mark and block.mark["rule"] for block in blocks(page)):
        failures += check_rules("--run", bin_directory)
    print(f"docs: {page.name}: {sum(block.is_run() for block in runnable)} blocks run, {failures} failed", flush=True)
    return failures


def main():
    pages = [pathlib.Path(name).resolve() for name in sys.argv[2:]] or [
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
    ]
    failure_count = sum(check(page) for page in pages) + check_safeguards() + check_mutations() + check_rules("--check")
    if sys.argv[1] != "--check":
        failure_count += sum(run_page(page, os.path.abspath(sys.argv[1])) for page in pages)
    sys.exit(1 if failure_count else 0)


main()
