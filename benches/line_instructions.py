#!/usr/bin/env python3
"""What line tables cost in instructions of compilation, as Markdown: `lines.py --once` under callgrind, with what
`jitlisten run` writes.

    PYTHON line_instructions.py target/release/jitlisten [SINKS]

Counted from the first compilation on, with and without lines, one run each: other work on the machine does not change
instructions.
"""

import collections
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
PARTS = (
    ("LLVM", r"libllvmlite"), ("Python", r"python"), ("C library", r"/libc[.-]|libm[.-]|libstdc|ld-linux"),
    ("jitlisten", r"libjitlisten"),
)


def counted(jitlisten, sinks, what):
    """Instructions by part."""
    found = collections.Counter()
    with tempfile.TemporaryDirectory() as directory:
        profile = os.path.join(directory, "profile")
        words = [
            "valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", "--compress-strings=no", "--compress-pos=no"
        ]
        words += ["--callgrind-out-file=" + profile, sys.executable, os.path.join(HERE, "lines.py"), "--once", what]
        environment = dict(os.environ, PYTHONHASHSEED="0", NUMBA_CPU_NAME="generic", JITLISTEN_DIR=directory)
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


def main():
    jitlisten, sinks = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    stock, lines = (counted(jitlisten, sinks, what) for what in ("stock", "lines"))
    names = [part for part, _ in PARTS] + ["other"]
    print(
        "| | instructions, million | over without, %% | %s |\n| --- | --- | --- |%s"
        % (" | ".join(names), " --- |" * len(names))
    )
    print(
        "| without | %.1f | | %s |"
        % (sum(stock.values()) / 1e6, " | ".join("%.1f" % (stock[name] / 1e6) for name in names))
    )
    whole = sum(stock.values()) / 100
    more = " | ".join("%+.2f" % ((lines[name] - stock[name]) / whole) for name in names)
    total = sum(lines.values())
    print("| with lines | %.1f | %+.2f | %s |" % (total / 1e6, (total - sum(stock.values())) / whole, more))


if __name__ == "__main__":
    main()
