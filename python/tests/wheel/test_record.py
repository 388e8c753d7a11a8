"""`jitlisten record` with an event of the kernel's, and into a folder that is read where nothing else is left."""

import json
import platform
import shutil

import pytest
from conftest import PROGRAMS, command, perf_map, python

PATIENT = 300


def test_a_bundle_is_all_that_a_reader_needs(run, tmp_path):
    there = tmp_path / "there"
    (there / "images").mkdir(parents=True)
    program = there / "kernel.py"
    shutil.copyfile(PROGRAMS / "kernel.py", program)
    done = run(
        command(), "record", "--bundle", "-o", there / "folder", "--", python(), program, "work",
        timeout=PATIENT, JITLISTEN_DIR=there / "images",
    )
    assert "folder" in done.stderr
    # As if on another machine: the folder elsewhere, the sources and the images gone.
    shutil.move(there / "folder", tmp_path / "moved")
    shutil.rmtree(there)
    text = run(command(), "lines", tmp_path / "moved").stdout
    assert "total += (i % 7) * 0.5" in text and "cannot be read" not in text
    found = json.loads(run(command(), "lines", "--json", "-", tmp_path / "moved" / "perf.data").stdout)
    assert found["compiled"] > 0
    refused = run(command(), "record", "--bundle", "-o", tmp_path, "--", python(), "-c", "", status=2)
    assert "is no bundle" in refused.stderr and (tmp_path / "moved").is_dir()


def test_an_event_is_counted(run, tmp_path):
    data = tmp_path / "faults.data"
    program = "import numpy as n\nfor i in range(60): n.ones(1 << 21)\n"
    run(command(), "record", "-e", "page-faults", "-o", data, "--", python(), "-c", program, timeout=PATIENT)
    assert "samples of page-faults" in run(command(), "lines", data).stdout
    unknown = run(command(), "record", "-e", "nonsense", "-o", data, "--", python(), "-c", "", status=2)
    assert "perf list" in unknown.stderr


POOL = """
import multiprocessing, sys, time
import kernel_of_pool

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    with multiprocessing.Pool(2) as pool:
        pool.map(kernel_of_pool.task, [0.7] * 2, chunksize=1)
        pool.close()
        pool.join()
    print("done")
"""

KERNEL_OF_POOL = """
import time
import numba

@numba.njit
def kernel(n):
    total = 0.0
    for i in range(n):
        total += (i % 7) * 0.5
    return total

def task(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until:
        kernel(100_000)
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_workers_of_a_pool(run, tmp_path, method):
    (tmp_path / "pool.py").write_text(POOL)
    (tmp_path / "kernel_of_pool.py").write_text(KERNEL_OF_POOL)
    done = run(command(), "record", "-s", "-o", "prof-%h-%p.data", "--", python(), "pool.py", method, timeout=PATIENT)
    assert done.stdout == "done\n"
    files = sorted(path.name for path in tmp_path.glob("prof-*-*.data"))
    assert len(files) >= 3, files
    found = json.loads(run(command(), "lines", "--json", "-", *files).stdout)
    lines = [line for file in found["files"] if file["path"].endswith("kernel_of_pool.py") for line in file["lines"]]
    # Two workers for 0.7 s each, some of it in imports and compilation.
    assert sum(line["self"] for line in lines) > 40, lines


def test_the_folder_of_a_bundle_is_named_by_host_and_process(run, tmp_path):
    run(
        command(), "record", "--bundle", "-o", "prof-%h-%p", "--", python(), PROGRAMS / "kernel.py", "once",
        timeout=PATIENT,
    )
    (folder,) = tmp_path.glob("prof-*")
    host = platform.node()
    assert folder.name.startswith(f"prof-{host}-") and folder.name.rsplit("-", 1)[1].isdigit()
    assert (folder / "perf.data").is_file() and (folder / "root").is_dir()


def test_a_process_is_recorded_with_the_sinks_that_are_asked_for(run, start, tmp_path):
    program = start(python(), PROGRAMS / "kernel.py")
    data = tmp_path / "a \"quoted\" \u0301 name.data"
    run(command(), "record", "-p", program.pid, "-d", 1, "--no-python", "--sinks", "image", "-o", data)
    assert perf_map(program.pid) == "" and not program.has_ended()
    assert "__main__.burn" in run(command(), "lines", data).stdout


def test_a_child_of_a_fork_leaves_the_recording_of_its_parent(run, tmp_path):
    (tmp_path / "forks.py").write_text(
        "import os, sys, jitlisten\n"
        "children = sys.argv[1] == 'children'\n"
        "with jitlisten.record('parent.data', children=children, lines=False):\n"
        "    child = os.fork()\n"
        "    if child == 0: sys.exit(3)\n"
        "    print(os.WEXITSTATUS(os.waitpid(child, 0)[1]))\n"
    )
    for word in ("children", "none"):
        done = run(python(), "forks.py", word)
        assert done.stdout == "3\n" and "Error" not in done.stderr, (word, done.stderr)
