"""perf's samples on programs whose distribution over lines is known.

The image sink makes files of the compiled code; llvm-symbolizer reads the lines of the sampled addresses from them.
"""

import collections
import os
import re
import shutil
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARY = os.environ.get("JITLISTEN_LIBRARY", os.path.join(HERE, "..", "..", "target", "release", "libjitlisten.so"))
SYMBOLIZER = next((t for t in ("llvm-symbolizer-22", "llvm-symbolizer-14", "llvm-symbolizer") if shutil.which(t)), None)
PAIRS = [("loop three", "loop one"), ("heavy callee", "light callee"), ("other file", "own line"), ("parallel three", "parallel one")]

pytest.importorskip("numba")


def addresses(data):
    """How often each offset of each image was sampled."""
    command = ["perf", "script", "-i", data, "--show-mmap-events", "-F", "ip,dso", "--no-inline"]
    text = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=300).stdout.decode()
    mapped, found = collections.defaultdict(list), collections.Counter()
    for line in text.splitlines():
        event = re.search(r"MMAP2? .*\[0x([0-9a-f]+)\(0x([0-9a-f]+)\) @ (\w+) .* (\S+object-\d+\.so)$", line)
        sample = re.search(r"([0-9a-f]+) .*\((\S+object-\d+\.so)\)$", line)
        if event:
            mapped[event[4]].append((int(event[1], 16), int(event[2], 16), int(event[3], 16)))
        elif sample:
            address = int(sample[1], 16)
            for start, size, offset in mapped[sample[2]]:
                if start <= address < start + size:
                    found[(sample[2], address - start + offset)] += 1
                    break
    return found


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    if not shutil.which("perf") or SYMBOLIZER is None:
        if os.environ.get("CI"):
            pytest.fail("perf and llvm-symbolizer are needed")
        pytest.skip("perf and llvm-symbolizer are needed")
    directory = tmp_path_factory.mktemp("truth")
    data = str(directory / "perf.data")
    environment = dict(
        os.environ, LD_PRELOAD=os.path.abspath(LIBRARY), JITLISTEN="image", JITLISTEN_DIR=str(directory), NUMBA_NUM_THREADS="1"
    )
    program = [sys.executable, os.path.join(HERE, "lines", "truth.py"), "10"]
    subprocess.run(["perf", "record", "-q", "-F", "5000", "-o", data] + program, env=environment, check=True, timeout=600)
    counted = addresses(data)
    asked = "\n".join("%s 0x%x" % key for key in counted)
    command = [SYMBOLIZER, "--output-style=GNU", "--no-inlines"]
    done = subprocess.run(command, input=asked, stdout=subprocess.PIPE, universal_newlines=True, check=True)
    lines = collections.Counter()
    for count, place in zip(counted.values(), done.stdout.splitlines()[1::2]):
        lines[os.path.basename(place).split(" ")[0]] += count
    return lines


def place(mark):
    for name in ("truth.py", "truth_other.py"):
        with open(os.path.join(HERE, "lines", name)) as file:
            for number, text in enumerate(file, 1):
                if text.rstrip().endswith("# " + mark):
                    return "%s:%d" % (name, number)
    raise AssertionError(mark)


@pytest.mark.parametrize("three, one", PAIRS)
def test_the_same_statement_run_three_times_as_often_has_three_quarters(samples, three, one):
    counts = [samples[place(three)], samples[place(one)]]
    total = sum(counts)
    assert total > 200, samples.most_common(12)
    share = 100 * counts[0] / total
    # Three points, and twice the standard error of that many samples.
    assert abs(share - 75) < 3 + 200 * (0.75 * 0.25 / total) ** 0.5, (counts, share)
