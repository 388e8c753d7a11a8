"""Real tools on the optimised code with line tables: `hot.py` runs `outer`, into which LLVM has inlined `inner`.

perf, py-spy, pystack, addr2line, llvm-symbolizer and the jitdump, each with lines, files and inlined calls. gdb is in
`test_lines_gdb.py`, callgrind in `test_lines_callgrind.py`.
"""

import os
import re
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "lines"))

import tools  # noqa: E402

pytest.importorskip("numba")

HOT = tools.line_of("hot.py", "hot")
CALL = tools.line_of("hot.py", "call")
INNER, OUTER = r"__main__\.inner\(float64\)", r"__main__\.outer\(array\(float64, 1d, C\), int64\)"


def annotated(perf, data, directory):
    """perf's share of each line of `hot.py` in `outer`."""
    report = tools.text_of(
        [perf, "report", "-i", data, "--no-children", "-g", "none", "--sort", "sym", "--stdio"], cwd=str(directory)
    )
    symbol = re.search(OUTER + r" \[v\d+\]", report)
    assert symbol, report[-2000:]
    text = tools.text_of([perf, "annotate", "-i", data, "-l", "--stdio", "-s", symbol[0]], cwd=str(directory))
    shares = re.findall(r"^ +([0-9.]+) +hot\.py:(\d+)", text, re.M)
    return {int(line): float(share) for share, line in shares}


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    perf = tools.need("perf")
    directory = tmp_path_factory.mktemp("recording")
    data = str(directory / "perf.data")
    record = [perf, "record", "-q", "-e", "cpu-clock:u", "-F", "299", "--call-graph", "dwarf,4096", "-o", data]
    done = subprocess.run(
        record + tools.program("hot.py", "3"), env=tools.environment(directory, "image"), stdout=subprocess.DEVNULL,
        timeout=300,
    )
    assert done.returncode == 0
    return perf, data, directory


def test_perf_annotate_has_percent_per_line(recording):
    shares = annotated(*recording)
    assert max(shares, key=shares.get) == HOT and shares[HOT] > 50, shares


def dso(directory):
    (image,) = [image for image in tools.images(directory) if " _ZN8__main__5outer" in tools.text_of(["nm", image])]
    return os.path.basename(image)


def test_perf_report_sorts_by_source_line(recording):
    perf, data, directory = recording
    words = [
        "report", "-i", data, "--stdio", "--no-children", "-g", "none", "--sort", "sym,srcline", "--dsos",
        dso(directory),
    ]
    rows = [line for line in tools.text_of([perf] + words).splitlines() if "%" in line and not line.startswith("#")]
    assert re.search(r"(inner|outer)\(.* hot\.py:%d *$" % HOT, rows[0]), rows


def test_perf_script_has_inlined_calls_as_frames(recording):
    perf, data, directory = recording
    text = tools.text_of([perf, "script", "-i", data, "--inline", "-F", "ip,sym", "--dsos", dso(directory)])
    chain = r"%s \[v\d+\] \(inlined\)\s+[0-9a-f]+ %s \[v\d+\]\s+[0-9a-f]+ cpython::%s" % (INNER, OUTER, OUTER)
    assert re.search(chain, text), text[:2000]


def test_symbolizers_know_line_and_inlined_calls(recording):
    _, _, directory = recording
    image = str(next(path for path in directory.glob("image-*/" + dso(directory))))
    address, size = next(
        (int(words[0], 16), int(words[1], 16))
        for words in (line.split() for line in tools.text_of(["nm", "-S", image]).splitlines())
        if words[3].startswith("_ZN8__main__5outer")
    )
    addresses = [hex(at) for at in range(address, address + size)]
    chain = r"%s \[v\d+\]\n\S*hot\.py:%d\S*\n%s \[v\d+\]\n\S*hot\.py:%d" % (INNER, HOT, OUTER, CALL)
    for tool in (
        [tools.need("addr2line"), "-i", "-f", "-e", image],
        [tools.need("llvm-symbolizer-22", "llvm-symbolizer-14", "llvm-symbolizer"), "-e", image],
    ):
        assert re.search(chain, tools.text_of(tool + addresses)), tool


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    directory = tmp_path_factory.mktemp("running")
    environment = tools.environment(directory, "image,unwind")
    with subprocess.Popen(tools.program("hot.py", "600"), env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"running\n"
        yield process.pid
        process.kill()


def test_py_spy_has_lines_and_inlined_calls(running):
    spy = [tools.need("py-spy"), "dump", "--native", "-p", str(running)]
    chain = r"%s \[v\d+\] \(hot\.py:%d\)\n +%s \[v\d+\] \(hot\.py:%d\)\n +cpython::" % (INNER, HOT, OUTER, CALL)
    # The process runs on: it may be elsewhere in its loop.
    dumps = (tools.text_of(spy) for _ in range(30))
    assert any(re.search(chain, text) for text in dumps), tools.text_of(spy)


def test_pystack_has_lines_and_inlined_calls(running):
    stack = [tools.need("pystack"), "remote", "--native", str(running)]
    chain = r'line %d, in %s \[v\d+\] \(.*\n.*hot\.py", line %d, in %s \[v\d+\] \(inlined\)' % (CALL, OUTER, HOT, INNER)
    dumps = (tools.text_of(stack) for _ in range(30))
    assert any(re.search(chain, text) for text in dumps), tools.text_of(stack)


def test_the_jitdump_has_lines(tmp_path):
    perf = tools.need("perf")
    data, injected = str(tmp_path / "perf.data"), str(tmp_path / "injected.data")
    record = [perf, "record", "-q", "-k", "1", "-e", "cpu-clock:u", "-F", "299", "-g", "-o", data]
    environment = tools.environment(tmp_path, "jitdump")
    done = subprocess.run(
        record + tools.program("hot.py", "3"), env=environment, stdout=subprocess.DEVNULL, timeout=300
    )
    assert done.returncode == 0
    subprocess.run([perf, "inject", "--jit", "-i", data, "-o", injected], cwd=str(tmp_path), check=True, timeout=300)
    shares = annotated(perf, injected, tmp_path)
    assert max(shares, key=shares.get) == HOT and shares[HOT] > 50, shares
