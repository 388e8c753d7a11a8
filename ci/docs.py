#!/usr/bin/env python3
"""Runs the commands of docs/*.md as written: in a scratch directory, with the command `jitlisten` and a Python with Numba in PATH.

    ci/docs.py BIN [PAGE...]        BIN: the directory with `jitlisten` and `python`; pages: all of docs/ by default

A page that writes no `prog.py` has that of docs/perf.md. A block is run where the line before it is `<!-- run -->` or `<!-- run, expect: TEXT -->`; TEXT must be in its output. A block
after `<!-- file NAME -->` is written to NAME first. The blocks of a page run one after the other in one directory.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

BLOCK = re.compile(r"^<!-- (file|run)(?: ([\w.-]+))?(?:, expect: (.*?))? -->\n+```\w*\n(.*?)^```$", re.M | re.S)


def run_page(page, bin_directory):
    failures = ran = 0
    with tempfile.TemporaryDirectory(prefix="jitlisten-docs-") as scratch:
        perf = BLOCK.findall(page.with_name("perf.md").read_text(encoding="utf-8"))
        pathlib.Path(scratch, "prog.py").write_text(perf[0][3], encoding="utf-8")
        environment = dict(os.environ, PATH=f"{bin_directory}:{os.environ['PATH']}", NUMBA_CACHE_DIR=scratch + "/cache")
        for kind, name, expected, text in BLOCK.findall(page.read_text(encoding="utf-8")):
            if kind == "file":
                pathlib.Path(scratch, name).write_text(text, encoding="utf-8")
                continue
            ran += 1
            done = subprocess.run(["bash", "-e", "-o", "pipefail", "-c", text], cwd=scratch, env=environment, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=300)
            if done.returncode != 0 or expected not in done.stdout:
                failures += 1
                print(f"docs: {page.name}: status {done.returncode}, expected {expected!r} in the output of:\n{text}\n{done.stdout[-4000:]}")
    print(f"docs: {page.name}: {ran} blocks run, {failures} failed")
    return failures


def main():
    bin_directory = os.path.abspath(sys.argv[1])
    root = pathlib.Path(__file__).resolve().parent.parent
    pages = [pathlib.Path(name).resolve() for name in sys.argv[2:]] or sorted((root / "docs").glob("*.md"))
    sys.exit(1 if sum(run_page(page, bin_directory) for page in pages) else 0)


main()
