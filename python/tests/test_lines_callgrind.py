"""callgrind's exact counts of instructions per line, on programs whose distribution is known: `truth.py`, thirty
rounds.

What runs is the optimised code, for a processor that valgrind knows (`NUMBA_CPU_NAME=generic`).
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
    """Instructions by (file, line): of the line itself, and with all that it calls."""

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
                    # The next line is what the call cost.
                    is_call = True
                elif cost and file:
                    self.all[file, int(cost[1])] += int(cost[2])
                    if not is_call:
                        self.own[file, int(cost[1])] += int(cost[2])
                    is_call = False


def counted(directory):
    """Of thirty rounds of `truth.py`."""
    profile = str(directory / "profile")
    words = [tools.need("valgrind"), "-q", "--tool=callgrind", "--compress-strings=no", "--compress-pos=no"]
    words.append("--callgrind-out-file=" + profile)
    environment = tools.environment(directory, "image", NUMBA_NUM_THREADS="1", NUMBA_CPU_NAME="generic")
    subprocess.run(words + tools.program("truth.py", "0"), env=environment, check=True, timeout=1800)
    return Counts(profile)


@pytest.fixture(scope="module")
def counts(tmp_path_factory):
    return counted(tmp_path_factory.mktemp("callgrind"))


def place(mark):
    for name in FILES:
        try:
            return name, tools.line_of(name, mark)
        except StopIteration:
            pass
    raise AssertionError(mark)


@pytest.mark.parametrize("three, one", PAIRS)
def test_a_statement_run_three_times_as_often_has_three_quarters(counts, three, one):
    # What a call costs is inside of the C library.
    counted = counts.all if three.startswith("costly") else counts.own
    pair = [counted[place(three)], counted[place(one)]]
    assert min(pair) > 100000 and abs(100 * pair[0] / sum(pair) - 75) < 3, pair


def test_every_line_over_five_percent_is_a_marked_one_or_its_loop(counts):
    marked = {place(mark) for pair in PAIRS for mark in pair}
    own = {key: count for key, count in counts.own.items() if key[0] in FILES}
    for key, count in own.items():
        if count > 0.05 * sum(own.values()):
            assert key in marked or (key[0], key[1] + 1) in marked, (key, count)
    # The loops' own lines: the counting is three to one as well. Not around `exp`, where the compiler moves one loop's
    # to the body.
    for pair in (PAIRS[0], PAIRS[4]):
        loops = [own[name, line - 1] for name, line in map(place, pair)]
        assert min(loops) > 10000 and abs(100 * loops[0] / sum(loops) - 75) < 3, (pair, loops)
    # No line is what the compiler cannot say.
    assert sum(own.get((name, 0), 0) for name in FILES) < 0.02 * sum(own.values())
