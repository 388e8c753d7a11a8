"""What `jitlisten lines` says of the loops of `benches/why/kernels.py`: the rule of each kernel at its hot line, and no
other."""

import json
import pathlib

import pytest
from conftest import command, need, other_environment, python, wait_for

KERNELS = pathlib.Path(__file__).parents[3] / "benches/why/kernels.py"
PATIENT = 600
#: The code, and so the advice, must not depend on the processor of the tests.
PROCESSOR = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": ""}
NEEDED = {"avx2", "fma", "bmi1", "bmi2", "movbe"}


@pytest.mark.slow
@pytest.mark.parametrize("environment_of", ["numba-0.68.1", "numba-0.57.1"])
def test_each_kernel_has_the_advice_that_makes_it_faster(run, tmp_path, environment_of):
    flags = next(line for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
    if not NEEDED <= set(flags.split()):
        pytest.skip(f"this processor cannot run code for {PROCESSOR['NUMBA_CPU_NAME']}")
    interpreter = python() if environment_of == "numba-0.68.1" else other_environment(f"{environment_of}/bin/python")
    # All of them, for more releases and processors: ci/why.sh.
    rows = [line.split("\t") for line in run(interpreter, KERNELS, "rules", "quick").stdout.splitlines()]
    expected = [(name, line, rule) for name, line, _, _, rule in rows]
    assert len(expected) == 21
    data = tmp_path / "kernels.data"
    # More samples a second would be skipped where the machine is busy.
    run(
        command(), "record", "-r", "199", "-o", data, "--", interpreter, KERNELS, "run", "1", "quick", timeout=PATIENT,
        **PROCESSOR,
    )
    found = json.loads(run(command(), "lines", "--json", "-", data, timeout=PATIENT).stdout)
    (lines,) = [file["lines"] for file in found["files"] if file["path"] == str(KERNELS)]
    loops = {}
    for line in lines:
        for loop in line["loops"]:
            loops.setdefault(loop["function"].partition("(")[0].rpartition(".")[2], []).append(loop)
    for name, line, rule in expected:
        # One loop of a kernel may have another hottest line, that of its `for` or of a store.
        near = [loop for loop in loops.get(name, []) if loop["first"] <= int(line) <= loop["last"]]
        rules = {advice["rule"] for loop in near for advice in loop["advice"]}
        assert near and rules == ({rule} - {"-"}), (name, line, near)
    # LLVM's reason, by its name in this release.
    said = {name: {remark["name"] for loop in loops[name] for remark in loop["llvm"]} for name in loops}
    assert (
        said["total"] == {"CantReorderFPOps"} and said["scaled"] == {"Vectorized"} and said["smoothed_in_place"]
    ), said
    text = run(command(), "lines", data, timeout=PATIENT).stdout
    assert "fastmath={'reassoc'} allows several" in text

    # One line: what helps, how the loop is left, what it calls; and what there is instead of a line without a loop.
    hot = {name: (line, rule) for name, line, rule in expected}
    for name, said in (
        ("total", "addsd"), ("total", "(CantReorderFPOps, line "), ("ratio", "1 exception"), ("bell", "calls")
    ):
        line, rule = hot[name]
        shown = run(command(), "why", f"{KERNELS.name}:{line}", data, timeout=PATIENT).stdout
        assert f"⚑ {rule}: " in shown and said in shown and f"__main__.{name}" in shown, shown
    asked = {
        "no.py:1": "no samples in no.py", "kernels.py:1": "no samples at kernels.py:1",
        "kernels.py": "lines with a loop",
    }
    for place, said in asked.items():
        assert said in run(command(), "why", place, data, status=2, timeout=PATIENT).stderr, place


@pytest.mark.parametrize("environment_of", ["numba-0.68.1", pytest.param("numba-0.57.1", marks=pytest.mark.slow)])
def test_an_error_of_llvm_ends_the_program_as_without_us(run, tmp_path, environment_of):
    """Its handlers of diagnostics are observed, also those of contexts that are gone."""
    program = pathlib.Path(__file__).parent / "programs/llvm_errors.py"
    interpreter = python() if environment_of == "numba-0.68.1" else other_environment(f"{environment_of}/bin/python")
    alone = run(interpreter, program, status=1)
    data = tmp_path / "errors.data"
    recorded = run(command(), "record", "-o", data, "--", interpreter, program, status=1)
    assert alone.stderr.startswith("error: <inline asm>:1:2: ") and alone.stderr in recorded.stderr
    assert alone.stdout == "compiled\n" == recorded.stdout


INLINED = """\
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
    """Not the line of the call."""
    (tmp_path / "inlined.py").write_text(INLINED)
    run(command(), "record", "-o", "inlined.data", "--", python(), "inlined.py")
    text = run(command(), "lines", "inlined.data").stdout
    assert "⚑ loop 5-6: one value at a time" in text and "loop 11" not in text, text
    shown = run(command(), "why", "inlined.py:6", "inlined.data").stdout
    assert "loop 5-6 (inlined.py), inlined into __main__.outer" in shown, shown


SUM = """\
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
    """C++ that lli compiles while it runs."""
    (tmp_path / "sum.cpp").write_text(SUM)
    run(need("clang-22"), "-O2", "-g", "-fno-inline", "-S", "-emit-llvm", "sum.cpp", "-o", "sum.ll")
    program = (need("lli-22"), linker, "sum.ll")
    run(command(), "record", "-o", "ours.data", "--", *program)
    preloaded = (command(), "run", "--sinks", "image", "--", *program)
    run(need("perf"), "record", "-q", "-e", "cpu-clock", "-o", "perf.data", "--", *preloaded)
    for data in ("ours.data", "perf.data"):
        shown = run(command(), "why", "sum.cpp:4", data).stdout
        assert "loop 3-4 (sum.cpp), total" in shown and "⚑ fp-order: " in shown and "addsd" in shown, (data, shown)
        assert "LLVM's flag reassoc" in shown and "fastmath=" not in shown


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
    running = start(python(), "-u", program)
    run(command(), "attach", running.pid, "--sinks", "image")
    wait_for(lambda: "image-" in pathlib.Path(f"/proc/{running.pid}/maps").read_text(), "its first image")

    def advised(text):
        return text if "⚑ fp-order: " in text else ""

    def shown():
        run(need("perf"), "record", "-q", "-e", "cpu-clock", "-o", "perf.data", "-p", running.pid, "--", "sleep", "2")
        return run(command(), "why", "attached.py:6", "perf.data", status=None).stdout

    # On a busy machine, two seconds of the clock may be few of the processor.
    said = wait_for(lambda: advised(shown()), "the loop")
    assert "__main__.total" in said
