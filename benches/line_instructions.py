#!/usr/bin/env python3
"""Cost of line tables, and of LLVM's remarks in addition to them, in instructions that compilation takes, as Markdown.
Runs `lines.py --once` under callgrind.

    PYTHON line_instructions.py target/release/jitlisten [SINKS]       lines, with the sinks of `jitlisten run`
    PYTHON line_instructions.py --remarks target/release/jitlisten     remarks; lines and images in both variants

Counts instructions from the first compilation on, in one run with the feature and one without it; with `--remarks`, in
a second run without it, too (A/A). Other work on the machine does not affect instruction counts.
"""

import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
PARTS = (
    ("LLVM", r"libllvmlite"),
    ("Python", r"python"),
    ("C library", r"/libc[.-]|libm[.-]|libstdc|ld-linux"),
    ("jitlisten", r"libjitlisten"),
)


#: Without a class of this name, the shim does not hook diagnostic handlers.
HANDLER = b"\0_ZTVN4llvm17DiagnosticHandlerE\0"


def copy_without_remarks(directory):
    """Copies llvmlite and renames its class of diagnostic handlers."""
    import llvmlite

    package = pathlib.Path(llvmlite.__file__).parent
    shutil.copytree(package, directory / "llvmlite")
    library = directory / "llvmlite/binding/libllvmlite.so"
    content = library.read_bytes()
    assert content.count(HANDLER) == 1
    library.write_bytes(content.replace(HANDLER, HANDLER.replace(b"Handler", b"HandleR")))
    return directory


def count_instructions(jitlisten, sinks, mode, modules=None):
    """Returns the instructions by part."""
    counts = collections.Counter()
    with tempfile.TemporaryDirectory() as directory:
        profile = os.path.join(directory, "profile")
        command = [
            "valgrind",
            "-q",
            "--tool=callgrind",
            "--instr-atstart=no",
            "--compress-strings=no",
            "--compress-pos=no",
        ]
        command += ["--callgrind-out-file=" + profile, sys.executable, os.path.join(HERE, "lines.py"), "--once", mode]
        environment = dict(os.environ, PYTHONHASHSEED="0", NUMBA_CPU_NAME="generic", JITLISTEN_DIR=directory)
        if modules:
            environment["PYTHONPATH"] = str(modules)
        run = [jitlisten, "run", "--no-lines"] + (["--sinks", sinks] if sinks else []) + ["--"]
        subprocess.run(run + command, env=environment, check=True)
        part, is_call = "other", False
        with open(profile, errors="replace") as lines:
            for line in lines:
                if line.startswith("ob="):
                    part = next((part for part, pattern in PARTS if re.search(pattern, line)), "other")
                elif line.startswith("calls="):
                    # The following line contains the inclusive cost of the call.
                    is_call = True
                elif cost := re.match(r"\d+ (\d+)$", line):
                    counts[part] += 0 if is_call else int(cost[1])
                    is_call = False
    return counts


def print_table(rows):
    """Prints the rows; the first one is the baseline."""
    names = [part for part, _ in PARTS] + ["other"]
    print("| | instructions, million | over the first, %% | %s |" % " | ".join(names))
    print("| --- | --- | --- |" + " --- |" * len(names))
    (_, baseline), *_ = rows
    baseline_percent = sum(baseline.values()) / 100
    for label, counts in rows:
        total = sum(counts.values())
        differences = " | ".join("%+.2f" % ((counts[name] - baseline[name]) / baseline_percent) for name in names)
        print("| %s | %.1f | %+.2f | %s |" % (label, total / 1e6, total / baseline_percent - 100, differences))


def main():
    arguments = sys.argv[1:]
    if arguments[0] == "--remarks":
        with tempfile.TemporaryDirectory() as directory:
            modules = copy_without_remarks(pathlib.Path(directory))
            rows = (("without", modules), ("without again", modules), ("with remarks", None))
            print_table(
                [(label, count_instructions(arguments[1], "image", "lines", modules)) for label, modules in rows]
            )
        return
    sinks = arguments[1] if len(arguments) > 1 else None
    print_table(
        [
            (label, count_instructions(arguments[0], sinks, mode))
            for label, mode in (("without", "stock"), ("with lines", "lines"))
        ]
    )


if __name__ == "__main__":
    main()
