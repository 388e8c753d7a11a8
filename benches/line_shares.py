#!/usr/bin/env python3
"""Whether lines of Numba's code have the time that they take: perf's samples beside callgrind's instructions, as
Markdown.

    line_shares.py [SECONDS, default 30]      some three minutes on a quiet machine

`python/tests/lines/truth.py` runs one statement three times as often on one line as on another. perf samples it for
that long, callgrind counts thirty rounds; both run the code for a processor that valgrind knows. Shows the pairs, and
every line that has more than 5 % of its function by one of the two. perf's are shares of time, callgrind's of
instructions: a division takes longer than an addition, so the two columns have to be equal for the pairs only, which
run the same instructions. The Python needs Numba and pytest; perf, valgrind and llvm-symbolizer are used.
"""

import ast
import os
import pathlib
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.join(HERE, os.pardir, "python", "tests")
sys.path.insert(0, TESTS)

import test_lines_callgrind as callgrind  # noqa: E402
import test_lines_truth as perf  # noqa: E402

FILES = ("truth.py", "truth_other.py")


def functions():
    """`(file, name, first line, last line)` of each."""
    for name in FILES:
        with open(os.path.join(TESTS, "lines", name)) as file:
            for node in ast.parse(file.read()).body:
                if isinstance(node, ast.FunctionDef) and node.name != "main":
                    yield name, node.name, node.lineno, node.end_lineno


def text_of(name, line):
    with open(os.path.join(TESTS, "lines", name)) as file:
        return file.read().splitlines()[line - 1].split("#")[0].strip()


def sigma(share, total):
    return 100 * (share * (1 - share) / total) ** 0.5


def pairs(samples, counts):
    print(
        "| three times, once | perf's samples | three, perf, % | sigma | three, callgrind, % |\n| --- | --- | --- | ---"
        " | --- |"
    )
    for three, one in perf.PAIRS:
        sampled = [samples[perf.place(mark)] for mark in (three, one)]
        by_call = counts.all if three.startswith("costly") else counts.own
        counted = [by_call[callgrind.place(mark)] for mark in (three, one)]
        share = sampled[0] / sum(sampled)
        row = (three, one, sum(sampled), 100 * share, sigma(share, sum(sampled)), 100 * counted[0] / sum(counted))
        print("| %s, %s | %d | %.1f | %.1f | %.1f |" % row)


def lines(samples, counts):
    print("\n| function | line | | perf, % | sigma | callgrind, % |\n| --- | --- | --- | --- | --- | --- |")
    for file, function, first, last in functions():
        known = range(first, last + 1)
        sampled = {line: samples["%s:%d" % (file, line)] for line in known}
        # At the line of `def` is the wrapper, which calls all of it.
        by_call = counts.all if function == "costly_calls" else counts.own
        counted = {line: (by_call if line > first else counts.own)[file, line] for line in known}
        all_sampled, all_counted = sum(sampled.values()), sum(counted.values())
        for line in known:
            # Of a function that is inlined everywhere there is hardly a line left.
            if all_sampled < 200 or all_counted == 0:
                continue
            shares = sampled[line] / all_sampled, counted[line] / all_counted
            if max(shares) > 0.05:
                row = (
                    function, file, line, text_of(file, line), 100 * shares[0], sigma(shares[0], all_sampled),
                    100 * shares[1],
                )
                print("| `%s` | %s:%d | `%s` | %.1f | %.1f | %.1f |" % row)


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        samples = perf.sampled(pathlib.Path(one), seconds, 999, NUMBA_CPU_NAME="generic")
        counts = callgrind.counted(pathlib.Path(two))
    print(
        "%d samples in the lines of %s, %.0f s\n"
        % (sum(n for at, n in samples.items() if at.startswith("truth")), FILES[0], seconds)
    )
    pairs(samples, counts)
    lines(samples, counts)


if __name__ == "__main__":
    main()
