"""Advice of `jitlisten lines` on the loops of `benches/why/kernels.py`: each kernel's hot line gets its rule and no
other."""

import json
import pathlib

import pytest
from conftest import command, pinned_program, python, require_tool, wait_for

KERNELS = pathlib.Path(__file__).parents[3] / "benches/why/kernels.py"
RUN_TIMEOUT_S = 600
#: Fixes the target processor, so that code and advice do not depend on the test machine.
TARGET_PROCESSOR = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": ""}
REQUIRED_CPU_FLAGS = {"avx2", "fma", "bmi1", "bmi2", "movbe"}


@pytest.mark.slow
@pytest.mark.parametrize("environment_name", ["numba-0.68.1", "numba-0.57.1"])
def test_each_kernel_has_the_advice_that_makes_it_faster(run, tmp_path, environment_name):
    flags = next(line for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
    if not REQUIRED_CPU_FLAGS <= set(flags.split()):
        pytest.skip(f"this processor cannot run code for {TARGET_PROCESSOR['NUMBA_CPU_NAME']}")
    interpreter = python() if environment_name == "numba-0.68.1" else pinned_program(f"{environment_name}/bin/python")
    # Quick selection of kernels; ci/why.sh tests all kernels with more releases and processors.
    rows = [line.split("\t") for line in run(interpreter, KERNELS, "rules", "quick").stdout.splitlines()]
    expected = [(name, line, rule) for name, line, _, _, rule in rows]
    assert len(expected) == 22
    data = tmp_path / "kernels.data"
    # A lower rate avoids dropped samples on a busy machine.
    run(
        command(),
        "record",
        "-r",
        "199",
        "-o",
        data,
        "--",
        interpreter,
        KERNELS,
        "run",
        "1",
        "quick",
        timeout=RUN_TIMEOUT_S,
        **TARGET_PROCESSOR,
    )
    report = json.loads(run(command(), "lines", "--json", "-", data, timeout=RUN_TIMEOUT_S).stdout)
    (report_lines,) = [file["lines"] for file in report["files"] if file["path"] == str(KERNELS)]
    loops = {}
    for line in report_lines:
        for loop in line["loops"]:
            loops.setdefault(loop["function"].partition("(")[0].rpartition(".")[2], []).append(loop)
    for name, line, rule in expected:
        # The hottest line of a kernel's loop may be its `for` or a store.
        nearby_loops = [loop for loop in loops.get(name, []) if loop["first"] <= int(line) <= loop["last"]]
        rules = {advice["rule"] for loop in nearby_loops for advice in loop["advice"]}
        assert nearby_loops and rules == ({rule} - {"-"}), (name, line, nearby_loops)
    # In this release, LLVM's remarks have these names.
    remarks_by_kernel = {name: {remark["name"] for loop in loops[name] for remark in loop["llvm"]} for name in loops}
    assert (
        remarks_by_kernel["total"] == {"CantReorderFPOps"}
        and remarks_by_kernel["scaled"] == {"Vectorized"}
        and remarks_by_kernel["smoothed_in_place"]
    ), remarks_by_kernel
    text = run(command(), "lines", data, timeout=RUN_TIMEOUT_S).stdout
    assert "fastmath={'reassoc'} allows several" in text

    # `why` explains one line: advice, loop exits and calls. A line without a loop gets an error message.
    hot_lines = {name: (line, rule) for name, line, rule in expected}
    for name, expected_text in (
        ("total", "addsd"),
        ("total", "(CantReorderFPOps, line "),
        ("ratio", "1 exception"),
        ("bell", "calls"),
    ):
        line, rule = hot_lines[name]
        output = run(command(), "why", f"{KERNELS.name}:{line}", data, timeout=RUN_TIMEOUT_S).stdout
        # No change is known for the calls of `exp`.
        mark = "·" if name == "bell" else "⚑"
        assert f"{mark} {rule}: " in output and expected_text in output and f"__main__.{name}" in output, output
    messages = {
        "no.py:1": "no samples in no.py",
        "kernels.py:1": "no samples at kernels.py:1",
        "kernels.py": "lines with a loop",
    }
    for location, message in messages.items():
        assert message in run(command(), "why", location, data, status=2, timeout=RUN_TIMEOUT_S).stderr, location


@pytest.mark.parametrize("environment_name", ["numba-0.68.1", pytest.param("numba-0.57.1", marks=pytest.mark.slow)])
def test_an_error_of_llvm_ends_the_program_as_without_us(run, tmp_path, environment_name):
    """jitlisten hooks LLVM's diagnostic handlers. Error messages must stay the same, even after contexts were
    destroyed."""
    program = pathlib.Path(__file__).parent / "programs/llvm_errors.py"
    interpreter = python() if environment_name == "numba-0.68.1" else pinned_program(f"{environment_name}/bin/python")
    plain_result = run(interpreter, program, status=1)
    data = tmp_path / "errors.data"
    recorded_result = run(command(), "record", "-o", data, "--", interpreter, program, status=1)
    assert plain_result.stderr.startswith("error: <inline asm>:1:2: ") and plain_result.stderr in recorded_result.stderr
    assert plain_result.stdout == "compiled\n" == recorded_result.stdout


INLINED_PROGRAM = """\
import numba, numpy

@numba.njit
def smoothed(a):
    for i in range(1, len(a)):
        a[i] += a[i - 1] * 0.5

@numba.njit
def outer(a, n):
    for k in range(n):
        smoothed(a)

outer(numpy.ones(10_000), 30_000)
"""


def test_a_loop_that_was_inlined_has_its_own_lines(run, tmp_path):
    """The loop is reported at its own lines, not at the line of the call that was inlined."""
    (tmp_path / "inlined.py").write_text(INLINED_PROGRAM)
    run(command(), "record", "-o", "inlined.data", "--", python(), "inlined.py")
    text = run(command(), "lines", "inlined.data").stdout
    assert "· loop 5-6: one value at a time" in text and "loop 11" not in text, text
    output = run(command(), "why", "inlined.py:6", "inlined.data").stdout
    assert "loop 5-6 (inlined.py), inlined into __main__.outer" in output, output


SUM_SOURCE = """\
double total(const double *a, long n) {
  double s = 0;
  for (long i = 0; i < n; i++)
    s += a[i];
  return s;
}
int main() {
  static double a[20000];
  double s = 0;
  for (long i = 0; i < 20000; i++) a[i] = i;
  for (long i = 0; i < 40000; i++) s += total(a + (i & 7), 19990);
  return s == 0;
}
"""


@pytest.mark.parametrize("linker", ["--jit-kind=mcjit", "--jit-linker=jitlink"])
def test_a_loop_of_another_llvm_that_we_or_perf_record(run, tmp_path, linker):
    """A C++ loop that lli compiles at run time."""
    (tmp_path / "sum.cpp").write_text(SUM_SOURCE)
    run(require_tool("clang-22"), "-O2", "-g", "-fno-inline", "-S", "-emit-llvm", "sum.cpp", "-o", "sum.ll")
    program = (require_tool("lli-22"), linker, "sum.ll")
    run(command(), "record", "-o", "ours.data", "--", *program)
    preloaded = (command(), "run", "--sinks", "image", "--", *program)
    run(require_tool("perf"), "record", "-q", "-e", "cpu-clock", "-o", "perf.data", "--", *preloaded)
    for data in ("ours.data", "perf.data"):
        output = run(command(), "why", "sum.cpp:4", data).stdout
        assert "loop 3-4 (sum.cpp), total" in output and "⚑ fp-order: " in output and "addsd" in output, (data, output)
        assert "clang fp reassociate(on)" in output and "fastmath=" not in output


def test_a_loop_that_is_compiled_after_attaching(run, start, tmp_path):
    program = tmp_path / "attached.py"
    program.write_text(
        "import time, numba, numpy\n"
        "@numba.njit\ndef total(a):\n    s = 0.0\n    for i in range(len(a)):\n        s += a[i]\n    return s\n"
        "print('ready', flush=True)\n"
        "while 'jitlisten' not in open('/proc/self/maps').read():\n    time.sleep(0.05)\n"
        "a = numpy.ones(100_000)\n"
        "while True:\n    total(a)\n"
    )
    process = start(python(), "-u", program)
    run(command(), "attach", process.pid, "--sinks", "image")
    wait_for(lambda: "image-" in pathlib.Path(f"/proc/{process.pid}/maps").read_text(), "its first image")

    def keep_if_advised(text):
        return text if "⚑ fp-order: " in text else ""

    def explain_line():
        run(
            require_tool("perf"),
            "record",
            "-q",
            "-e",
            "cpu-clock",
            "-o",
            "perf.data",
            "-p",
            process.pid,
            "--",
            "sleep",
            "2",
        )
        return run(command(), "why", "attached.py:6", "perf.data", status=None).stdout

    # On a busy machine, a recording of two seconds may hold few samples.
    output = wait_for(lambda: keep_if_advised(explain_line()), "the loop")
    assert "__main__.total" in output
