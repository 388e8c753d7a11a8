"""What `jitlisten lines` says of the loops of `benches/why/kernels.py`: the rule of each kernel at its hot line, and no other."""

import json
import pathlib

from conftest import command, python

KERNELS = pathlib.Path(__file__).parents[3] / "benches/why/kernels.py"
PATIENT = 600


def test_each_kernel_has_the_advice_that_makes_it_faster(run, tmp_path):
    expected = [line.split("\t") for line in run(python(), KERNELS, "rules").stdout.splitlines()]
    data = tmp_path / "kernels.data"
    run(command(), "record", "-r", "999", "-o", data, "--", python(), KERNELS, "run", "1", timeout=PATIENT)
    found = json.loads(run(command(), "lines", "--json", "-", data, timeout=PATIENT).stdout)
    (lines,) = [file["lines"] for file in found["files"] if file["path"] == str(KERNELS)]
    loops = {}
    for line in lines:
        for loop in line["loops"]:
            loops.setdefault(loop["function"].partition("(")[0].rpartition(".")[2], []).append(loop)
    assert len(expected) == 17
    for name, line, rule in expected:
        # One loop of a kernel may have another hottest line, that of its `for` or of a store.
        near = [loop for loop in loops.get(name, []) if loop["first"] <= int(line) <= loop["last"]]
        rules = {advice["rule"] for loop in near for advice in loop["advice"]}
        assert rules == ({rule} - {"-"}), (name, line, near)
    text = run(command(), "lines", data, timeout=PATIENT).stdout
    assert "fastmath={'reassoc'} allows several" in text

    # One line: what helps, which instruction, which function it calls; and what there is instead of a line without a loop.
    hot = {name: (line, rule) for name, line, rule in expected}
    for name, said in (("total", "addsd"), ("ratio", "1 exception"), ("bell", "call")):
        line, rule = hot[name]
        shown = run(command(), "why", f"{KERNELS.name}:{line}", data, timeout=PATIENT).stdout
        assert f"⚑ {rule}: " in shown and said in shown and f"__main__.{name}" in shown, shown
    asked = {"no.py:1": "no samples in no.py", "kernels.py:1": "no samples at kernels.py:1", "kernels.py": "lines with a loop"}
    for place, said in asked.items():
        assert said in run(command(), "why", place, data, status=2, timeout=PATIENT).stderr, place
