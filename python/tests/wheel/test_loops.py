"""What `jitlisten lines` says of the loops of `benches/why/kernels.py`: the rule of each kernel at its hot line, and no other."""

import json
import pathlib

import pytest
from conftest import command, other_environment, python

KERNELS = pathlib.Path(__file__).parents[3] / "benches/why/kernels.py"
PATIENT = 600
#: The code, and so the advice, must not depend on the processor of the tests.
PROCESSOR = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": ""}
NEEDED = {"avx2", "fma", "bmi1", "bmi2", "movbe"}
#: LLVM 14 adds 0.0 where the kernel adds nothing, so that fastmath={'reassoc'} alone helps: 9.5 times.
DIFFERENT = {"numba-0.57.1": {"present": "fp-order"}}


@pytest.mark.parametrize("environment_of", ["numba-0.57.1", "numba-0.68.1"])
def test_each_kernel_has_the_advice_that_makes_it_faster(run, tmp_path, environment_of):
    flags = next(line for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
    if not NEEDED <= set(flags.split()):
        pytest.skip(f"this processor cannot run code for {PROCESSOR['NUMBA_CPU_NAME']}")
    interpreter = python() if environment_of == "numba-0.68.1" else other_environment(f"{environment_of}/bin/python")
    expected = [line.split("\t") for line in run(interpreter, KERNELS, "rules").stdout.splitlines()]
    assert len(expected) == 21
    data = tmp_path / "kernels.data"
    # More samples a second would be skipped where the machine is busy.
    run(command(), "record", "-r", "199", "-o", data, "--", interpreter, KERNELS, "run", "1", timeout=PATIENT, **PROCESSOR)
    found = json.loads(run(command(), "lines", "--json", "-", data, timeout=PATIENT).stdout)
    (lines,) = [file["lines"] for file in found["files"] if file["path"] == str(KERNELS)]
    loops = {}
    for line in lines:
        for loop in line["loops"]:
            loops.setdefault(loop["function"].partition("(")[0].rpartition(".")[2], []).append(loop)
    for name, line, rule in expected:
        rule = DIFFERENT.get(environment_of, {}).get(name, rule)
        # One loop of a kernel may have another hottest line, that of its `for` or of a store.
        near = [loop for loop in loops.get(name, []) if loop["first"] <= int(line) <= loop["last"]]
        rules = {advice["rule"] for loop in near for advice in loop["advice"]}
        assert near and rules == ({rule} - {"-"}), (name, line, near)
    text = run(command(), "lines", data, timeout=PATIENT).stdout
    assert "fastmath={'reassoc'} allows several" in text

    # One line: what helps, how the loop is left, what it calls; and what there is instead of a line without a loop.
    hot = {name: (line, rule) for name, line, rule in expected}
    for name, said in (("total", "addsd"), ("ratio", "1 exception"), ("bell", "calls")):
        line, rule = hot[name]
        shown = run(command(), "why", f"{KERNELS.name}:{line}", data, timeout=PATIENT).stdout
        assert f"⚑ {rule}: " in shown and said in shown and f"__main__.{name}" in shown, shown
    asked = {"no.py:1": "no samples in no.py", "kernels.py:1": "no samples at kernels.py:1", "kernels.py": "lines with a loop"}
    for place, said in asked.items():
        assert said in run(command(), "why", place, data, status=2, timeout=PATIENT).stderr, place
