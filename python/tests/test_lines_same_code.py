"""Machine code must be identical with and without line tables and LLVM's remarks, in every loaded section, its
relocations and its symbols.

Requires the native library (`JITLISTEN_LIBRARY`, or `target/release/libjitlisten.so`), which asks for unwind tables, as
it does for users.
"""

import json
import os
import subprocess
import sys
import time

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARY = os.environ.get("JITLISTEN_LIBRARY", os.path.join(HERE, "..", "..", "target", "release", "libjitlisten.so"))
RESULTS_TABLE = os.path.join(HERE, "..", "..", "records", "same-code.tsv")
# The full set of programs takes minutes.
EXTENT_OPTIONS = ["--short"] if os.environ.get("JITLISTEN_LINES_PROGRAMS") != "all" else []

#: Images contain LLVM's remarks, for those LLVM releases whose remarks jitlisten understands.
numba = pytest.importorskip("numba")
IMAGE_OPTIONS = [] if numba.__version__.startswith("0.56.") else ["--images"]


def unsupported_programs(version):
    """Programs that this Numba cannot compile. They raise exceptions whose arguments are known only at run time, or
    have a lifted loop after a list comprehension, which newer Pythons inline into the function."""
    results = {"exceptions"} if version.startswith("0.56.") else set()
    return results | ({"lifted_loop"} if sys.version_info >= (3, 12) else set())


def record_results(results):
    """Writes the results of this Numba to the table. `ci/lines.sh same-code` reads which rows belong to the current
    builder."""
    from llvmlite.binding import llvm_version_info

    (total, _), (_, repeat_details) = results["compared"]["lines"], results["compared"]["again"]
    label = "%s (%d), %d.%d" % ((results["numba"], llvm_version_info[0]) + sys.version_info[:2])
    programs = "all, with remarks" if IMAGE_OPTIONS else "all"
    padding_note = " (%d padded otherwise)" % total["padded"] if total["padded"] else ""
    row = (
        label,
        programs,
        total["programs"],
        total["objects"],
        "{:,}".format(total["text"]),
        str(total["different"]) + padding_note,
        len(repeat_details),
        "%.2f" % (total["size"][1] / total["size"][0]),
        time.strftime("%Y-%m-%d"),
        os.environ["JITLISTEN_LINES_BUILDER"],
    )
    with open(RESULTS_TABLE) as file:
        rows = file.read().splitlines()
    row_numbers = [number for number, line in enumerate(rows) if line.startswith(label + "\t")] or [len(rows)]
    rows = [line for line in rows if not line.startswith(label + "\t")]
    rows.insert(row_numbers[0], "\t".join(map(str, row)))
    with open(RESULTS_TABLE, "w") as file:
        file.write("\n".join(rows) + "\n")


@pytest.fixture(scope="module")
def compared():
    assert os.path.exists(LIBRARY), "make build makes it"
    environment = dict(os.environ, LD_PRELOAD=os.path.abspath(LIBRARY), JITLISTEN="unwind", PYTHONHASHSEED="0")
    # Numba 0.56 (LLVM 11) gets line tables only with `force`; for this release, instructions are compared.
    environment["JITLISTEN_LINES"] = "force"
    command = (
        [sys.executable, os.path.join(HERE, "lines", "objects.py"), "--json", "--again"]
        + IMAGE_OPTIONS
        + EXTENT_OPTIONS
    )
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=3600)
    assert result.returncode == 0, result.stderr.decode()
    results = json.loads(result.stdout.decode().splitlines()[-1])
    print(results["compared"])
    if os.environ.get("JITLISTEN_LINES_BUILDER"):
        record_results(results)
    # Programs that fail in both runs are not compared; only those that Numba itself cannot compile may fail.
    failed = {line.partition(":")[0] for line in results["failed"]}
    assert failed <= unsupported_programs(results["numba"]), results["failed"]
    return results["compared"]


def test_no_object_has_other_code(compared):
    totals, details = compared["lines"]
    assert totals["objects"] > 70
    assert details == [], compared["again"]


def test_objects_are_little_larger_than_1_6_times(compared):
    size_without, size_with_lines = compared["lines"][0]["size"]
    # Line tables make objects larger. The factor depends on the processor's vector width, because LLVM generates more
    # loops.
    assert 1.2 * size_without < size_with_lines <= 1.65 * size_without
