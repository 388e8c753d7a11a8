"""The machine code with line tables and LLVM's remarks is the machine code without: every loaded section, its
relocations, its symbols.

Needs the native library (`JITLISTEN_LIBRARY`, or `target/release/libjitlisten.so`): it asks for unwind tables, as for
users.
"""

import json
import os
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARY = os.environ.get("JITLISTEN_LIBRARY", os.path.join(HERE, "..", "..", "target", "release", "libjitlisten.so"))
# `all` takes minutes.
EXTENT = ["--short"] if os.environ.get("JITLISTEN_LINES_PROGRAMS") != "all" else []

#: Images have LLVM's remarks, of the releases of LLVM that this is known of.
numba = pytest.importorskip("numba")
IMAGES = [] if numba.__version__.startswith("0.56.") else ["--images"]


def not_for(version):
    """What this Numba cannot compile: arguments of an exception that are known at run time only; a lifted loop behind a
    list comprehension, which newer Pythons have in the function itself."""
    found = {"exceptions"} if version.startswith("0.56.") else set()
    return found | ({"lifted_loop"} if sys.version_info >= (3, 12) else set())


@pytest.fixture(scope="module")
def compared():
    assert os.path.exists(LIBRARY), "make build makes it"
    environment = dict(os.environ, LD_PRELOAD=os.path.abspath(LIBRARY), JITLISTEN="unwind", PYTHONHASHSEED="0")
    # Numba 0.56, with LLVM 11, has lines only so: there it is the instructions that are compared.
    environment["JITLISTEN_LINES"] = "force"
    command = [sys.executable, os.path.join(HERE, "lines", "objects.py"), "--json", "--again"] + IMAGES + EXTENT
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=3600)
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout.decode().splitlines()[-1])
    print(found["compared"])
    # What fails in both ways is compared to nothing: only what Numba itself cannot compile.
    failed = {line.partition(":")[0] for line in found["failed"]}
    assert failed <= not_for(found["numba"]), found["failed"]
    return found["compared"]


def test_no_object_has_other_code(compared):
    total, details = compared["lines"]
    assert total["objects"] > 70
    assert details == [], compared["again"]


def test_objects_are_at_most_1_6_times_as_large(compared):
    without, with_lines = compared["lines"][0]["size"]
    # And larger at all: there are lines.
    assert 1.2 * without < with_lines <= 1.6 * without
