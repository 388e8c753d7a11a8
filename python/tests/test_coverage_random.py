"""Coverage of random functions must equal coverage.py's measurement of the same functions in the interpreter.

COVERAGE_FUNCTIONS is the number of functions, COVERAGE_SEED the first seed. `coverage_cases/generate.py` writes them.
"""

import json
import os
import re
import subprocess
import sys
from typing import NamedTuple

import pytest
from test_coverage_equal import PACKAGE, PROGRAM

GENERATE = os.path.join(os.path.dirname(PROGRAM), "generate.py")
FUNCTIONS_PER_MODULE = 20
MODULES = max(1, int(os.environ.get("COVERAGE_FUNCTIONS", "20")) // FUNCTIONS_PER_MODULE)
FIRST_SEED = int(os.environ.get("COVERAGE_SEED", "1"))
# Limit for one run of a module, on a busy machine.
RUN_SECONDS = 900


def measure(module, mode, only=None):
    """Returns what coverage.py measured, and the printed results: `mode` is truth, plain or compiled."""
    environment = dict(
        os.environ,
        PYTHONPATH=os.path.dirname(PACKAGE),
        PYTHONDONTWRITEBYTECODE="1",
        PYTHONWARNINGS="ignore",
        NUMBA_CACHE_DIR=module + ".cache",
        COVERAGE_TRUTH="" if mode == "compiled" else "1",
        NUMBA_DISABLE_JIT="1" if mode == "truth" else "0",
    )
    if only is not None:
        environment["GENERATED_ONLY"] = " ".join(only)
    output = module + "." + mode
    command = [sys.executable, PROGRAM, module, output, "branch"]
    result = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=RUN_SECONDS
    )
    if "_analyze_ast" in result.stderr:
        pytest.skip("this coverage.py cannot analyse the module")
    assert result.returncode == 0, result.stderr
    with open(output) as file:
        return json.load(file), result.stdout.splitlines()


def names_of(lines):
    return {line.split()[0] for line in lines}


def refused_names(results):
    return names_of(line for line in results if " refused " in line)


def without_reason(line):
    """Numba's messages contain numbers that differ from run to run."""
    return line.partition(" refused ")[0]


class Module:
    """Module of random functions."""

    def __init__(self, directory, seed, functions):
        self.path = os.path.join(str(directory), "m%d" % seed)
        command = [sys.executable, GENERATE, str(seed), str(functions)]
        self.text = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
        with open(self.path + ".py", "w") as file:
            file.write(self.text)
        self.lines = self.text.splitlines()
        self._first_lines, self._callees = {}, {}
        decorator = None
        for number, line in enumerate(self.lines, 1):
            match = re.match(r"def (\w+)", line)
            if line.startswith("@"):
                decorator = decorator or number
            elif match:
                name = match[1]
                self._first_lines[decorator or number] = name
                decorator = None
                self._callees[name] = set()
            elif self._first_lines:
                self._callees[name] |= set(re.findall(r"\b(f[0-9]+)\(", line))

    @property
    def names(self):
        return set(self._callees) - {"call", "drive"}

    def with_callees(self, names):
        found = set()
        while names:
            found |= names
            names = set().union(*(self._callees[name] for name in names)) - found
        return found

    def function_at(self, line):
        # A function begins with its decorator. Lines before the first function depend on NUMBA_DISABLE_JIT.
        starts = [start for start in self._first_lines if start <= abs(line)]
        return self._first_lines[max(starts)] if starts else ""


def unsteady_refusals(path, names):
    """Returns those of the refused functions that Numba does not refuse once more, or refuses without coverage, too."""
    if not names:
        return set()
    measured, plain = (refused_names(measure(path, mode, names)[1]) for mode in ("compiled", "plain"))
    return names - (measured - plain)


class Difference(NamedTuple):
    function: str
    text: str


def differences(directory, seed, functions=FUNCTIONS_PER_MODULE):
    """Returns the differences between compiled and interpreted functions, and the number of functions compared."""
    module = Module(directory, seed, functions)
    compiled, results = measure(module.path, "compiled")
    # Numba refuses some functions. Those never ran, and must not call others as Python either.
    refused = refused_names(results)
    never_ran = refused - names_of(line for line in results if " refused " not in line)
    truth, expected = measure(module.path, "truth", module.names - never_ran)
    # Others compute another result, for example because they overflow.
    different = names_of(set(expected) ^ set(results)) - never_ran
    excluded = module.with_callees(different) | never_ran
    found = []

    def describe(kind, line, where):
        function = module.function_at(line)
        if function not in excluded | {"", "call", "drive"}:
            text = "%d: %s: %s %s: %s" % (seed, function, kind, where, module.lines[abs(line) - 1].strip())
            found.append(Difference(function, text))

    for first, second, kind in ((truth, compiled, "missing"), (compiled, truth, "false")):
        for line in sorted(set(second["missing"]) - set(first["missing"])):
            describe(kind + " line", line, line)
        for arc in sorted(set(map(tuple, first["arcs"])) - set(map(tuple, second["arcs"]))):
            describe(kind + " arc", arc[0], "%d>%d" % arc)
    suspects = different | refused | {difference.function for difference in found}
    if suspects:
        plain = measure(module.path, "plain", suspects)[1]
        refused_plain = refused_names(plain)
        # Numba may refuse a function once, and compile it the next time, because the order of its sets is random.
        unsteady = (refused_plain - refused) | unsteady_refusals(module.path, refused - refused_plain)
        plain = set(map(without_reason, plain))
        found = [difference for difference in found if difference.function not in unsteady]
        found += [
            Difference(line.split()[0], "%d: result: %s" % (seed, line))
            for line in results
            if line.split()[0] in (different | refused) - refused_plain - unsteady and without_reason(line) not in plain
        ]
        excluded |= module.with_callees(unsteady)
    return found, functions - len(excluded)


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + MODULES))
def test_equal(tmp_path, seed):
    found, compared = differences(tmp_path, seed)
    print("%d: %d functions are equal" % (seed, compared))
    assert not found, "\n".join(difference.text for difference in found)
    assert compared >= FUNCTIONS_PER_MODULE // 4
