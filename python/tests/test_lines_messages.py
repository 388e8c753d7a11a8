"""Exceptions, messages and dumps are Numba's own, word for word, with the newest Numba and with old ones: before
Numba 0.62 (LLVM 16), LLVM ends the process when it reads an invalid module with debug information."""

import os
import re
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(HERE, "lines", "messages.py")
VENVS = os.path.join(HERE, os.pardir, os.pardir, "target", "venv")
#: Besides the Numba that runs the tests: two with LLVM 14.
OLD = ("numba-0.57.1", "numba-0.60.0")

pytest.importorskip("numba")

#: Addresses, and numbers of tasks and of constants that contain an address.
NOISE = re.compile(r"(0x|#|\.)[0-9a-f]{8,}|1[34][0-9]{13}|tmp\w{8}")


def output(python, *words):
    environment = dict(os.environ, PYTHONHASHSEED="0", JITLISTEN_LINES="force")
    done = subprocess.run(
        [python, PROGRAM, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=600
    )
    texts = [NOISE.sub("N", text.decode()) for text in (done.stdout, done.stderr)]
    return done.returncode, texts[0].split("--- "), texts[1].splitlines()


@pytest.mark.parametrize("numba", ["this", *OLD])
def test_what_numba_says_is_its_own(numba):
    python = sys.executable if numba == "this" else os.path.join(VENVS, numba, "bin", "python")
    if not os.path.exists(python):
        assert not os.environ.get("CI"), "ci/setup.sh makes it"
        pytest.skip(python)
    stock, ours = output(python), output(python, "lines")
    assert stock[0] == 0 and len(stock[1]) > 20, stock[2]
    assert ours[0] == 0, ours[2]
    for program, same in zip(ours[1], stock[1]):
        assert program == same
    assert ours == stock
