"""Tests of real tools on optimised code with line tables. `hot.py` runs `outer`, into which LLVM inlines `inner`.

Checks lines, files and inlined calls in perf, py-spy, pystack, addr2line, llvm-symbolizer and the jitdump. gdb is in
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

HOT_LINE = tools.line_marked("hot.py", "hot")
CALL_LINE = tools.line_marked("hot.py", "call")
INNER_PATTERN, OUTER_PATTERN = r"__main__\.inner\(float64\)", r"__main__\.outer\(array\(float64, 1d, C\), int64\)"


def annotate(perf, data, directory):
    """Percentage of the samples in `outer` for each line of `hot.py`, from perf annotate."""
    report = tools.combined_output(
        [perf, "report", "-i", data, "--no-children", "-g", "none", "--sort", "sym", "--stdio"], cwd=str(directory)
    )
    symbol = re.search(OUTER_PATTERN + r" \[v\d+\]", report)
    assert symbol, report[-2000:]
    text = tools.combined_output([perf, "annotate", "-i", data, "-l", "--stdio", "-s", symbol[0]], cwd=str(directory))
    shares = re.findall(r"^ +([0-9.]+) +hot\.py:(\d+)", text, re.M)
    return {int(line): float(share) for share, line in shares}


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    perf = tools.require_tool("perf")
    directory = tmp_path_factory.mktemp("recording")
    data = str(directory / "perf.data")
    record = [perf, "record", "-q", "-e", "cpu-clock:u", "-F", "299", "--call-graph", "dwarf,4096", "-o", data]
    result = subprocess.run(
        record + tools.program("hot.py", "3"),
        env=tools.environment(directory, "image"),
        stdout=subprocess.DEVNULL,
        timeout=300,
    )
    assert result.returncode == 0
    return perf, data, directory


def test_perf_annotate_has_percent_per_line(recording):
    shares = annotate(*recording)
    assert max(shares, key=shares.get) == HOT_LINE and shares[HOT_LINE] > 50, shares


def image_name(directory):
    (image,) = [
        image for image in tools.image_paths(directory) if " _ZN8__main__5outer" in tools.combined_output(["nm", image])
    ]
    return os.path.basename(image)


def test_perf_report_sorts_by_source_line(recording):
    perf, data, directory = recording
    arguments = [
        "report",
        "-i",
        data,
        "--stdio",
        "--no-children",
        "-g",
        "none",
        "--sort",
        "sym,srcline",
        "--dsos",
        image_name(directory),
    ]
    rows = [
        line
        for line in tools.combined_output([perf] + arguments).splitlines()
        if "%" in line and not line.startswith("#")
    ]
    assert re.search(r"(inner|outer)\(.* hot\.py:%d *$" % HOT_LINE, rows[0]), rows


def test_perf_script_has_inlined_calls_as_frames(recording):
    perf, data, directory = recording
    text = tools.combined_output(
        [perf, "script", "-i", data, "--inline", "-F", "ip,sym", "--dsos", image_name(directory)]
    )
    chain = r"%s \[v\d+\] \(inlined\)\s+[0-9a-f]+ %s \[v\d+\]\s+[0-9a-f]+ cpython::%s" % (
        INNER_PATTERN,
        OUTER_PATTERN,
        OUTER_PATTERN,
    )
    assert re.search(chain, text), text[:2000]


def test_symbolizers_know_line_and_inlined_calls(recording):
    _, _, directory = recording
    image = str(next(path for path in directory.glob("image-*/" + image_name(directory))))
    start, size = next(
        (int(fields[0], 16), int(fields[1], 16))
        for fields in (line.split() for line in tools.combined_output(["nm", "-S", image]).splitlines())
        if fields[3].startswith("_ZN8__main__5outer")
    )
    addresses = [hex(address) for address in range(start, start + size)]
    chain = r"%s \[v\d+\]\n\S*hot\.py:%d\S*\n%s \[v\d+\]\n\S*hot\.py:%d" % (
        INNER_PATTERN,
        HOT_LINE,
        OUTER_PATTERN,
        CALL_LINE,
    )
    for tool in (
        [tools.require_tool("addr2line"), "-i", "-f", "-e", image],
        [tools.require_tool("llvm-symbolizer-22", "llvm-symbolizer-14", "llvm-symbolizer"), "-e", image],
    ):
        assert re.search(chain, tools.combined_output(tool + addresses)), tool


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    directory = tmp_path_factory.mktemp("running")
    environment = tools.environment(directory, "image,unwind")
    with subprocess.Popen(tools.program("hot.py", "600"), env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"running\n"
        yield process.pid
        process.kill()


def test_py_spy_has_lines_and_inlined_calls(running):
    dump_command = [tools.require_tool("py-spy"), "dump", "--native", "-p", str(running)]
    chain = r"%s \[v\d+\] \(hot\.py:%d\)\n +%s \[v\d+\] \(hot\.py:%d\)\n +cpython::" % (
        INNER_PATTERN,
        HOT_LINE,
        OUTER_PATTERN,
        CALL_LINE,
    )
    # The process keeps running, so it may be at a different point of its loop.
    dumps = (tools.combined_output(dump_command) for _ in range(30))
    assert any(re.search(chain, text) for text in dumps), tools.combined_output(dump_command)


def test_pystack_has_lines_and_inlined_calls(running):
    dump_command = [tools.require_tool("pystack"), "remote", "--native", str(running)]
    chain = r'line %d, in %s \[v\d+\] \(.*\n.*hot\.py", line %d, in %s \[v\d+\] \(inlined\)' % (
        CALL_LINE,
        OUTER_PATTERN,
        HOT_LINE,
        INNER_PATTERN,
    )
    dumps = (tools.combined_output(dump_command) for _ in range(30))
    assert any(re.search(chain, text) for text in dumps), tools.combined_output(dump_command)


def test_the_jitdump_has_lines(tmp_path):
    perf = tools.require_tool("perf")
    data, injected = str(tmp_path / "perf.data"), str(tmp_path / "injected.data")
    record = [perf, "record", "-q", "-k", "1", "-e", "cpu-clock:u", "-F", "299", "-g", "-o", data]
    environment = tools.environment(tmp_path, "jitdump")
    result = subprocess.run(
        record + tools.program("hot.py", "3"), env=environment, stdout=subprocess.DEVNULL, timeout=300
    )
    assert result.returncode == 0
    subprocess.run([perf, "inject", "--jit", "-i", data, "-o", injected], cwd=str(tmp_path), check=True, timeout=300)
    shares = annotate(perf, injected, tmp_path)
    assert max(shares, key=shares.get) == HOT_LINE and shares[HOT_LINE] > 50, shares
