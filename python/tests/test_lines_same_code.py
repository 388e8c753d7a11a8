"""The machine code with line tables and LLVM's remarks is the machine code without: every loaded section, its
relocations, its symbols.

Needs the native library (`JITLISTEN_LIBRARY`, or `target/release/libjitlisten.so`): it asks for unwind tables, as for
users.
"""

import json
import os
import subprocess
import sys
import time

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARY = os.environ.get("JITLISTEN_LIBRARY", os.path.join(HERE, "..", "..", "target", "release", "libjitlisten.so"))
RECORD = os.path.join(HERE, "..", "..", "records", "same-code.tsv")
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


def record(found):
    """Writes the row of this Numba, whatever it says; `ci/lines.sh same-code` reads which rows today's builder has."""
    from llvmlite.binding import llvm_version_info

    (total, _), (_, again) = found["compared"]["lines"], found["compared"]["again"]
    which = "%s (%d), %d.%d" % ((found["numba"], llvm_version_info[0]) + sys.version_info[:2])
    programs = "all, with remarks" if IMAGES else "all"
    padded = " (%d padded otherwise)" % total["padded"] if total["padded"] else ""
    row = (
        which, programs, total["programs"], total["objects"], "{:,}".format(total["text"]),
        str(total["different"]) + padded, len(again), "%.2f" % (total["size"][1] / total["size"][0]),
        time.strftime("%Y-%m-%d"), os.environ["JITLISTEN_LINES_BUILDER"],
    )
    with open(RECORD) as file:
        rows = file.read().splitlines()
    places = [number for number, line in enumerate(rows) if line.startswith(which + "\t")] or [len(rows)]
    rows = [line for line in rows if not line.startswith(which + "\t")]
    rows.insert(places[0], "\t".join(map(str, row)))
    with open(RECORD, "w") as file:
        file.write("\n".join(rows) + "\n")


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
    if os.environ.get("JITLISTEN_LINES_BUILDER"):
        record(found)
    # What fails in both ways is compared to nothing: only what Numba itself cannot compile.
    failed = {line.partition(":")[0] for line in found["failed"]}
    assert failed <= not_for(found["numba"]), found["failed"]
    return found["compared"]


def test_no_object_has_other_code(compared):
    total, details = compared["lines"]
    assert total["objects"] > 70
    assert details == [], compared["again"]


def test_objects_are_little_larger_than_1_6_times(compared):
    without, with_lines = compared["lines"][0]["size"]
    # And larger at all: there are lines. How large depends on the processor's vectors, because LLVM makes more loops.
    assert 1.2 * without < with_lines <= 1.65 * without
