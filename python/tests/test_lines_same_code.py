"""The machine code with line tables is the machine code without: every loaded section, its relocations, its symbols.

Needs the native library (`JITLISTEN_LIBRARY`, or `target/release/libjitlisten.so`): it asks for unwind tables, as for users.
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

pytest.importorskip("numba")

# The pickled block of `with objmode` holds what differs from run to run without lines, too.
NOT_COMPARED = ("with_objmode, object 1: .lrodata#1:", "with_objmode, object 1: .rodata#1:")


@pytest.fixture(scope="module")
def compared():
    assert os.path.exists(LIBRARY), "make build makes it"
    environment = dict(os.environ, LD_PRELOAD=os.path.abspath(LIBRARY), JITLISTEN="unwind", PYTHONHASHSEED="0")
    environment.pop("JITLISTEN_LINES", None)
    command = [sys.executable, os.path.join(HERE, "lines", "objects.py"), "--json"] + EXTENT
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=3600)
    assert done.returncode == 0, done.stderr.decode()
    total, details = json.loads(done.stdout.decode().splitlines()[-1])["compared"]["lines"]
    print(total)
    return total, details


def test_no_object_has_other_code(compared):
    total, details = compared
    assert total["objects"] > 70
    assert [line for line in details if not line.startswith(NOT_COMPARED)] == []


def test_objects_are_at_most_1_6_times_as_large(compared):
    without, with_lines = compared[0]["size"]
    # And larger at all: there are lines.
    assert 1.2 * without < with_lines <= 1.6 * without
