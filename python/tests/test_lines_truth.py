"""perf samples of programs with a known distribution of time over lines.

The image sink writes files of the compiled code; llvm-symbolizer finds the lines of the sampled addresses in them.
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


def read_stacks(data):
    """Returns the addresses of each sample, innermost first, and the mappings of the images."""
    command = ["perf", "script", "-i", data, "--show-mmap-events", "-F", "ip,dso", "--no-inline"]
    script = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=900).stdout.decode()
    mappings, stacks = collections.defaultdict(list), [[]]
    for line in script.splitlines():
        event = re.search(r"MMAP2? .*\[0x([0-9a-f]+)\(0x([0-9a-f]+)\) @ (\w+) .* (\S+object-\d+\.so)$", line)
        frame = re.search(r"([0-9a-f]+) .*\((.+)\)$", line)
        if event:
            mappings[event[4]].append((int(event[1], 16), int(event[2], 16), int(event[3], 16)))
        elif frame:
            stacks[-1].append((frame[2], int(frame[1], 16)))
        else:
            stacks.append([])
    return [stack for stack in stacks if stack], mappings


def count_addresses(data):
    """Number of samples by image and offset of the innermost compiled frame, whether that frame itself or a native
    callee was running."""
    samples, mappings = read_stacks(data)
    counts = collections.Counter()
    for stack in samples:
        depth = next((index for index, (dso, _) in enumerate(stack) if dso in mappings), None)
        # An `exp` call has two frames. In deeper stacks, the sample does not belong to a call from compiled code.
        if depth is None or depth > 3:
            continue
        dso, address = stack[depth]
        # A caller's return address follows the call; subtracting one points into the call.
        address -= depth > 0
        # perf prints the frames of a stack as file offsets, but single addresses as they are.
        offsets = [address - start + offset for start, size, offset in mappings[dso] if start <= address < start + size]
        counts[(dso, offsets[0] if offsets else address)] += 1
    return counts


def sampled(directory, seconds, hertz, **overrides):
    """Number of samples by file and line of `truth.py`, which runs for ``seconds``."""
    data = str(directory / "perf.data")
    environment = dict(
        os.environ,
        LD_PRELOAD=os.path.abspath(LIBRARY),
        JITLISTEN="image",
        JITLISTEN_DIR=str(directory),
        NUMBA_NUM_THREADS="1",
    )
    environment.update(overrides)
    program = [sys.executable, os.path.join(HERE, "lines", "truth.py"), str(seconds)]
    record = ["perf", "record", "-q", "-e", "cpu-clock:u", "-F", str(hertz), "--call-graph", "dwarf,2048", "-o", data]
    subprocess.run(record + program, env=environment, check=True, timeout=1800)
    counts = count_addresses(data)
    queries = "\n".join("%s 0x%x" % key for key in counts)
    command = [SYMBOLIZER, "--output-style=GNU", "--no-inlines"]
    result = subprocess.run(command, input=queries, stdout=subprocess.PIPE, universal_newlines=True, check=True)
    lines = collections.Counter()
    for count, location in zip(counts.values(), result.stdout.splitlines()[1::2]):
        lines[os.path.basename(location).split(" ")[0]] += count
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


@pytest.mark.parametrize("triple_mark, single_mark", PAIRS)
def test_the_same_statement_run_three_times_as_often_has_three_quarters(samples, triple_mark, single_mark):
    counts = [samples[place(triple_mark)], samples[place(single_mark)]]
    total = sum(counts)
    assert total >= 1000, samples.most_common(12)
    percentage = 100 * counts[0] / total
    # Time is not proportional to instructions and differs by processor: 73 to 80 was measured. Samples on a wrong line
    # would add 25 points.
    assert abs(percentage - 75) < 7, (counts, percentage)
