#!/usr/bin/env python3
"""Checks the time attributed to lines of Numba's code: perf's samples against callgrind's instructions, as Markdown.

    line_shares.py [SECONDS, default 30]      takes some three minutes on a quiet machine

`python/tests/lines/truth.py` has pairs of lines that run the same statement, the first three times as often as the
second. perf samples it for SECONDS, callgrind counts thirty iterations; both run code for a processor that valgrind
supports. Prints the pairs, and every line with more than 5 % of its function in either column. perf measures time and
callgrind counts instructions, but a division takes longer than an addition. Hence the columns need only agree for the
pairs, whose lines run the same instructions. Needs perf, valgrind and llvm-symbolizer, and a Python with Numba and
pytest.
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


def find_functions():
    """Yields `(file, name, first line, last line)` of each function."""
    for name in FILES:
        with open(os.path.join(TESTS, "lines", name)) as file:
            for node in ast.parse(file.read()).body:
                if isinstance(node, ast.FunctionDef) and node.name != "main":
                    yield name, node.name, node.lineno, node.end_lineno


def read_line(name, line):
    with open(os.path.join(TESTS, "lines", name)) as file:
        return file.read().splitlines()[line - 1].split("#")[0].strip()


def sigma(share, total):
    return 100 * (share * (1 - share) / total) ** 0.5


def print_pairs(samples, counts):
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


def print_lines(samples, counts):
    print("\n| function | line | | perf, % | sigma | callgrind, % |\n| --- | --- | --- | --- | --- | --- |")
    for file, function, first_line, last_line in find_functions():
        line_numbers = range(first_line, last_line + 1)
        sampled = {line: samples["%s:%d" % (file, line)] for line in line_numbers}
        # The `def` line belongs to the wrapper that calls the function.
        by_call = counts.all if function == "costly_calls" else counts.own
        counted = {line: (by_call if line > first_line else counts.own)[file, line] for line in line_numbers}
        total_samples, total_counts = sum(sampled.values()), sum(counted.values())
        for line in line_numbers:
            # A function that is inlined everywhere has almost no samples of its own.
            if total_samples < 200 or total_counts == 0:
                continue
            shares = sampled[line] / total_samples, counted[line] / total_counts
            if max(shares) > 0.05:
                row = (
                    function,
                    file,
                    line,
                    read_line(file, line),
                    100 * shares[0],
                    sigma(shares[0], total_samples),
                    100 * shares[1],
                )
                print("| `%s` | %s:%d | `%s` | %.1f | %.1f | %.1f |" % row)


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30
    with tempfile.TemporaryDirectory() as perf_directory, tempfile.TemporaryDirectory() as callgrind_directory:
        samples = perf.sampled(pathlib.Path(perf_directory), seconds, 999, NUMBA_CPU_NAME="generic")
        counts = callgrind.counted(pathlib.Path(callgrind_directory))
    print(
        "%d samples in the lines of %s, %.0f s\n"
        % (sum(count for location, count in samples.items() if location.startswith("truth")), FILES[0], seconds)
    )
    print_pairs(samples, counts)
    print_lines(samples, counts)


if __name__ == "__main__":
    main()
