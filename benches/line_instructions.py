#!/usr/bin/env python3
"""What line tables, and LLVM's remarks over them, cost in instructions of compilation, as Markdown: `lines.py --once`
under callgrind.

    PYTHON line_instructions.py target/release/jitlisten [SINKS]       lines, with what `jitlisten run` writes
    PYTHON line_instructions.py --remarks target/release/jitlisten     remarks, with lines and images in both

Counted from the first compilation on, with and without, one run each, and with `--remarks` one more without (A/A):
other work on the machine does not change instructions.
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
    ("LLVM", r"libllvmlite"), ("Python", r"python"), ("C library", r"/libc[.-]|libm[.-]|libstdc|ld-linux"),
    ("jitlisten", r"libjitlisten"),
)


#: Without this class, the shim lets the handlers of diagnostics alone.
HANDLER = b"\0_ZTVN4llvm17DiagnosticHandlerE\0"


def without_remarks(directory):
    """A copy of llvmlite whose handlers of diagnostics have another name."""
    import llvmlite

    package = pathlib.Path(llvmlite.__file__).parent
    shutil.copytree(package, directory / "llvmlite")
    library = directory / "llvmlite/binding/libllvmlite.so"
    content = library.read_bytes()
    assert content.count(HANDLER) == 1
    library.write_bytes(content.replace(HANDLER, HANDLER.replace(b"Handler", b"HandleR")))
    return directory


def counted(jitlisten, sinks, what, modules=None):
    """Instructions by part."""
    found = collections.Counter()
    with tempfile.TemporaryDirectory() as directory:
        profile = os.path.join(directory, "profile")
        words = [
            "valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", "--compress-strings=no", "--compress-pos=no"
        ]
        words += ["--callgrind-out-file=" + profile, sys.executable, os.path.join(HERE, "lines.py"), "--once", what]
        environment = dict(os.environ, PYTHONHASHSEED="0", NUMBA_CPU_NAME="generic", JITLISTEN_DIR=directory)
        if modules:
            environment["PYTHONPATH"] = str(modules)
        run = [jitlisten, "run", "--no-lines"] + (["--sinks", sinks] if sinks else []) + ["--"]
        subprocess.run(run + words, env=environment, check=True)
        part, is_call = "other", False
        with open(profile, errors="replace") as lines:
            for line in lines:
                if line.startswith("ob="):
                    part = next((part for part, pattern in PARTS if re.search(pattern, line)), "other")
                elif line.startswith("calls="):
                    # The next line is what the call cost.
                    is_call = True
                elif cost := re.match(r"\d+ (\d+)$", line):
                    found[part] += 0 if is_call else int(cost[1])
                    is_call = False
    return found


def table(rows):
    """The first is what the others are compared with."""
    names = [part for part, _ in PARTS] + ["other"]
    print("| | instructions, million | over the first, %% | %s |" % " | ".join(names))
    print("| --- | --- | --- |" + " --- |" * len(names))
    (_, first), *_ = rows
    whole = sum(first.values()) / 100
    for label, found in rows:
        total = sum(found.values())
        more = " | ".join("%+.2f" % ((found[name] - first[name]) / whole) for name in names)
        print("| %s | %.1f | %+.2f | %s |" % (label, total / 1e6, total / whole - 100, more))


def main():
    words = sys.argv[1:]
    if words[0] == "--remarks":
        with tempfile.TemporaryDirectory() as directory:
            modules = without_remarks(pathlib.Path(directory))
            rows = (("without", modules), ("without again", modules), ("with remarks", None))
            table([(label, counted(words[1], "image", "lines", modules)) for label, modules in rows])
        return
    sinks = words[1] if len(words) > 1 else None
    table([(label, counted(words[0], sinks, what)) for label, what in (("without", "stock"), ("with lines", "lines"))])


if __name__ == "__main__":
    main()
