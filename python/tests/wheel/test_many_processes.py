"""Pools, joblib, Dask and MPI as their users start them: a recording of each process, read together, and read
elsewhere."""

import json
import os
import pathlib
import shutil

import pytest
from conftest import command, need, python

PATIENT = 300

KERNEL = """
import time
import numba

@numba.njit
def kernel(n):
    total = 0.0
    for i in range(n):
        total += (i % 7) * 0.5
    return total

def task(seconds):
    kernel(1)
    until = time.process_time() + seconds
    while time.process_time() < until:
        kernel(100_000)
"""

POOL = """
import multiprocessing, sys, time
import kernel

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    with multiprocessing.Pool(2) as pool:
        pool.map(kernel.task, [0.7] * 2, chunksize=1)
        # Without these, `with` ends the workers by a signal.
        if sys.argv[2] == "joined":
            pool.close()
            pool.join()
    print("done")
"""

JOBLIB = """
import joblib
import kernel

if __name__ == "__main__":
    joblib.Parallel(n_jobs=2)(joblib.delayed(kernel.task)(0.7) for _ in range(2))
    print("done")
"""

DASK = """
from distributed import Client, LocalCluster
import kernel

if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        client.gather(client.map(kernel.task, [0.7] * 2, pure=False))
    print("done")
"""

MPI = """
from mpi4py import MPI
import kernel

kernel.task(0.5)
ranks = MPI.COMM_WORLD.allreduce(1)
if MPI.COMM_WORLD.rank == 0:
    print(ranks, "ranks are done")
"""


def write(directory, program):
    (directory / "kernel.py").write_text(KERNEL)
    path = directory / "program.py"
    path.write_text(program)
    return path


def need_package(run, name):
    """One of those that are not Numba's (`pools` in ci/setup.sh). In CI it has to be there."""
    if run(python(), "-c", f"import {name}", status=None).returncode == 0:
        return
    if os.environ.get("CI"):
        pytest.fail(f"CI must have {name}")
    pytest.skip(f"no {name}")


def read(run, *recordings):
    return json.loads(run(command(), "lines", "--json", "-", *recordings).stdout)


def seconds_in_kernel(found):
    """Of samples on lines that are shown with their text; a busy machine takes fewer samples, with longer periods."""
    lines = [line for file in found["files"] if file["path"].endswith("kernel.py") for line in file["lines"]]
    assert all(line["source"] for line in lines if line["line"]), lines
    return sum(line["self_percent"] for line in lines) / 100 * found["weight"] / 1e9


@pytest.mark.parametrize(("method", "end"), [("fork", "joined"), ("spawn", "joined"), ("fork", "terminated")])
def test_the_workers_of_a_pool(run, tmp_path, method, end):
    program = write(tmp_path, POOL)
    done = run(
        command(), "record", "-s", "-o", "prof-%h-%p.data", "--", python(), program, method, end, timeout=PATIENT
    )
    assert done.stdout == "done\n"
    files = sorted(path.name for path in tmp_path.glob("prof-*-*.data"))
    assert len(files) >= 3, files
    # Two workers for 0.7 s each; one that is killed loses its last moment.
    assert seconds_in_kernel(read(run, *files)) > 1.0


@pytest.mark.parametrize(("package", "text"), [("joblib", JOBLIB), ("distributed", DASK)], ids=["joblib", "dask"])
def test_workers_are_in_the_bundle_of_the_program(run, tmp_path, package, text):
    need_package(run, package)
    there = tmp_path / "there"
    (there / "images").mkdir(parents=True)
    program = write(there, text)
    done = run(
        command(), "record", "--bundle", "-s", "-o", there / "prof-%h-%p", "--", python(), program,
        timeout=PATIENT, JITLISTEN_DIR=there / "images",
    )
    assert done.stdout == "done\n"
    (folder,) = there.glob("prof-*")
    # As if on another machine: the folder elsewhere, the program and the images gone.
    shutil.move(folder, tmp_path / "moved")
    shutil.rmtree(there)
    found = read(run, tmp_path / "moved")
    for process in found["processes"]:
        pathlib.Path(f"/tmp/perf-{process['pid']}.map").unlink(missing_ok=True)
    found = read(run, tmp_path / "moved")
    assert len(found["processes"]) >= 3, found["processes"]
    assert seconds_in_kernel(found) > 1.0
    assert "cannot be read" not in run(command(), "lines", tmp_path / "moved").stdout


def test_the_ranks_of_an_mpirun(run, tmp_path):
    need("mpirun")
    need_package(run, "mpi4py")
    program = write(tmp_path, MPI)
    done = run(
        "mpirun", "-n", "4", "--oversubscribe",
        command(), "record", "-o", "prof-%h-%p.data", "--", python(), program,
        timeout=PATIENT, OMPI_ALLOW_RUN_AS_ROOT=1, OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1,
    )
    assert done.stdout == "4 ranks are done\n"
    moved = tmp_path / "moved"
    moved.mkdir()
    # Each with its images, which lie beside it.
    for path in list(tmp_path.glob("prof-*")):
        shutil.move(path, moved)
    files = sorted(moved.glob("prof-*-*.data"))
    assert len(files) == 4, files
    found = read(run, *files)
    assert len(found["processes"]) == 4 and len(found["hosts"]) == 1, found["processes"]
    assert min(seconds_in_kernel(read(run, file)) for file in files) > 0.4
