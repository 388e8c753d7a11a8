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
PAIRS = [
    ("loop three", "loop one"),
    ("heavy callee", "light callee"),
    ("other file", "own line"),
    ("costly three", "costly one"),
    ("parallel three", "parallel one"),
]

pytest.importorskip("numba")


def stacks(data):
    """The addresses of each sample, from the inside out, and where the images are mapped."""
    command = ["perf", "script", "-i", data, "--show-mmap-events", "-F", "ip,dso", "--no-inline"]
    text = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=900).stdout.decode()
    mapped, found = collections.defaultdict(list), [[]]
    for line in text.splitlines():
        event = re.search(r"MMAP2? .*\[0x([0-9a-f]+)\(0x([0-9a-f]+)\) @ (\w+) .* (\S+object-\d+\.so)$", line)
        frame = re.search(r"([0-9a-f]+) .*\((.+)\)$", line)
        if event:
            mapped[event[4]].append((int(event[1], 16), int(event[2], 16), int(event[3], 16)))
        elif frame:
            found[-1].append((frame[2], int(frame[1], 16)))
        else:
            found.append([])
    return [stack for stack in found if stack], mapped


def addresses(data):
    """How often each offset of each image was sampled, itself or in what it calls outside of compiled code."""
    samples, mapped = stacks(data)
    found = collections.Counter()
    for stack in samples:
        depth = next((at for at, (dso, _) in enumerate(stack) if dso in mapped), None)
        # `exp` is two functions, and nothing else calls compiled code from within a library.
        if depth is None or depth > 3:
            continue
        dso, address = stack[depth]
        # Of a caller, the call and not what is behind it.
        address -= depth > 0
        # perf shows frames of a stack as offsets in their files, and single addresses as they are.
        offsets = [address - start + offset for start, size, offset in mapped[dso] if start <= address < start + size]
        found[(dso, offsets[0] if offsets else address)] += 1
    return found


def sampled(directory, seconds, hertz, **more):
    """Samples by file and line of `truth.py`, which runs for this long."""
    data = str(directory / "perf.data")
    environment = dict(
        os.environ, LD_PRELOAD=os.path.abspath(LIBRARY), JITLISTEN="image", JITLISTEN_DIR=str(directory),
        NUMBA_NUM_THREADS="1",
    )
    environment.update(more)
    program = [sys.executable, os.path.join(HERE, "lines", "truth.py"), str(seconds)]
    record = ["perf", "record", "-q", "-e", "cpu-clock:u", "-F", str(hertz), "--call-graph", "dwarf,2048", "-o", data]
    subprocess.run(record + program, env=environment, check=True, timeout=1800)
    counted = addresses(data)
    asked = "\n".join("%s 0x%x" % key for key in counted)
    command = [SYMBOLIZER, "--output-style=GNU", "--no-inlines"]
    done = subprocess.run(command, input=asked, stdout=subprocess.PIPE, universal_newlines=True, check=True)
    lines = collections.Counter()
    for count, place in zip(counted.values(), done.stdout.splitlines()[1::2]):
        lines[os.path.basename(place).split(" ")[0]] += count
    return lines


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    if not shutil.which("perf") or SYMBOLIZER is None:
        if os.environ.get("CI"):
            pytest.fail("perf and llvm-symbolizer are needed")
        pytest.skip("perf and llvm-symbolizer are needed")
    return sampled(tmp_path_factory.mktemp("truth"), 10, 1999)


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
    assert total >= 1000, samples.most_common(12)
    share = 100 * counts[0] / total
    # Time is not instructions, on no two processors alike: 73 to 80 was seen. Samples on a wrong line would be 25
    # points.
    assert abs(share - 75) < 7, (counts, share)
