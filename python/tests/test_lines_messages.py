"""Exceptions, messages and dumps must be identical to those of Numba alone, with the newest Numba and with old
releases. Before Numba 0.62 (LLVM 16), LLVM exits when it reads an invalid module with debug information."""

import os
import re
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(HERE, "lines", "messages.py")
VENVS = os.path.join(HERE, os.pardir, os.pardir, "target", "venv")
#: Two Numba environments with LLVM 14, tested in addition to the one that runs the tests.
OLD_ENVIRONMENTS = ("numba-0.57.1", "numba-0.60.0")

pytest.importorskip("numba")

#: Addresses, task ids, and numbers of constants that contain an address.
VOLATILE_NUMBER = re.compile(r"(0x|#|\.)[0-9a-f]{8,}|1[34][0-9]{13}|tmp\w{8}")


def run_programs(interpreter, *arguments):
    environment = dict(os.environ, PYTHONHASHSEED="0", JITLISTEN_LINES="force")
    result = subprocess.run(
        [interpreter, PROGRAM, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=600
    )
    outputs = [VOLATILE_NUMBER.sub("N", stream.decode()) for stream in (result.stdout, result.stderr)]
    return result.returncode, outputs[0].split("--- "), outputs[1].splitlines()


@pytest.mark.parametrize("environment", ["this", *OLD_ENVIRONMENTS])
def test_what_numba_says_is_its_own(environment):
    interpreter = sys.executable if environment == "this" else os.path.join(VENVS, environment, "bin", "python")
    if not os.path.exists(interpreter):
        assert not os.environ.get("CI"), "ci/setup.sh makes it"
        pytest.skip(interpreter)
    stock, ours = run_programs(interpreter), run_programs(interpreter, "lines")
    assert stock[0] == 0 and len(stock[1]) > 20, stock[2]
    assert ours[0] == 0, ours[2]
    for program, stock_program in zip(ours[1], stock[1]):
        assert program == stock_program
    assert ours == stock
