"""Exact instruction counts per line, measured by callgrind, for programs with a known distribution: thirty rounds of
`truth.py`.

The code is optimised for a processor that valgrind supports (`NUMBA_CPU_NAME=generic`).
"""

import collections
import os
import re
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "lines"))

import tools  # noqa: E402

pytest.importorskip("numba")

FILES = ("truth.py", "truth_other.py")
PAIRS = [
    ("loop three", "loop one"),
    ("heavy callee", "light callee"),
    ("other file", "own line"),
    ("costly three", "costly one"),
    ("parallel three", "parallel one"),
]


class Counts:
    """Instructions by (file, line): those of the line itself, and those including all callees."""

    def __init__(self, profile):
        self.own, self.all = collections.Counter(), collections.Counter()
        file, is_call = None, False
        with open(profile, errors="replace") as lines:
            for line in lines:
                name = re.match(r"(?:fl|fi|fe)=(.*)", line)
                cost = re.match(r"(\d+) (\d+)$", line)
                if name:
                    file = os.path.basename(name[1])
                elif line.startswith("calls="):
                    # The next line has the cost of the call.
                    is_call = True
                elif cost and file:
                    self.all[file, int(cost[1])] += int(cost[2])
                    if not is_call:
                        self.own[file, int(cost[1])] += int(cost[2])
                    is_call = False


def counted(directory):
    """Instruction counts of thirty rounds of `truth.py`."""
    profile = str(directory / "profile")
    command = [tools.require_tool("valgrind"), "-q", "--tool=callgrind", "--compress-strings=no", "--compress-pos=no"]
    command.append("--callgrind-out-file=" + profile)
    environment = tools.environment(directory, "image", NUMBA_NUM_THREADS="1", NUMBA_CPU_NAME="generic")
    subprocess.run(command + tools.program("truth.py", "0"), env=environment, check=True, timeout=1800)
    return Counts(profile)


@pytest.fixture(scope="module")
def counts(tmp_path_factory):
    return counted(tmp_path_factory.mktemp("callgrind"))


def place(mark):
    for name in FILES:
        try:
            return name, tools.line_marked(name, mark)
        except StopIteration:
            pass
    raise AssertionError(mark)


@pytest.mark.parametrize("triple_mark, single_mark", PAIRS)
def test_a_statement_run_three_times_as_often_has_three_quarters(counts, triple_mark, single_mark):
    # The instructions of an `exp` call are counted inside the C library.
    instructions = counts.all if triple_mark.startswith("costly") else counts.own
    pair = [instructions[place(triple_mark)], instructions[place(single_mark)]]
    assert min(pair) > 100000 and abs(100 * pair[0] / sum(pair) - 75) < 3, pair


def test_every_line_over_five_percent_is_a_marked_one_or_its_loop(counts):
    marked = {place(mark) for pair in PAIRS for mark in pair}
    self_instructions = {key: count for key, count in counts.own.items() if key[0] in FILES}
    for key, count in self_instructions.items():
        if count > 0.05 * sum(self_instructions.values()):
            assert key in marked or (key[0], key[1] + 1) in marked, (key, count)
    # The lines of the loop headers also have a ratio of three to one, except for loops around `exp`, where the compiler
    # moves one loop's counting into the body.
    for pair in (PAIRS[0], PAIRS[4]):
        loops = [self_instructions[name, line - 1] for name, line in map(place, pair)]
        assert min(loops) > 10000 and abs(100 * loops[0] / sum(loops) - 75) < 3, (pair, loops)
    # The compiler assigned hardly any code to line 0.
    assert sum(self_instructions.get((name, 0), 0) for name in FILES) < 0.02 * sum(self_instructions.values())
