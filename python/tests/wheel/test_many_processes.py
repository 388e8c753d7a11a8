"""Recordings of multiprocessing pools, joblib, Dask and MPI. Each process has its own recording; all are read together,
even after they were moved."""

import json
import pathlib
import shutil

import pytest
from conftest import command, need_package, pinned_program, python, require_tool

RUN_TIMEOUT_S = 300

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
import concurrent.futures, multiprocessing, sys, time
import kernel

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    if sys.argv[2] == "executor":
        with concurrent.futures.ProcessPoolExecutor(2) as executor:
            list(executor.map(kernel.task, [0.7] * 2))
        print("done")
        sys.exit()
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
    joblib.Parallel(n_jobs=2, backend="BACKEND")(joblib.delayed(kernel.task)(0.7) for _ in range(2))
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


def write_program(directory, source):
    (directory / "kernel.py").write_text(KERNEL)
    path = directory / "program.py"
    path.write_text(source)
    return path


def read_report(run, *recordings):
    return json.loads(run(command(), "lines", "--json", "-", *recordings).stdout)


def seconds_in_kernel(report):
    """CPU time in seconds of the samples on lines shown with their source. Samples are weighted by period, because a
    busy machine takes fewer samples with longer periods."""
    lines = [line for file in report["files"] if file["path"].endswith("kernel.py") for line in file["lines"]]
    assert all(line["source"] for line in lines if line["line"]), lines
    return sum(line["self_percent"] for line in lines) / 100 * report["weight"] / 1e9


@pytest.mark.parametrize(
    ("method", "ending"),
    [
        ("fork", "joined"),
        ("spawn", "joined"),
        ("forkserver", "joined"),
        ("fork", "terminated"),
        ("fork", "executor"),
        ("spawn", "executor"),
        ("forkserver", "executor"),
    ],
)
def test_the_workers_of_a_pool(run, tmp_path, method, ending):
    program = write_program(tmp_path, POOL)
    result = run(
        command(),
        "record",
        "-s",
        "-o",
        "prof-%h-%p.data",
        "--",
        python(),
        program,
        method,
        ending,
        timeout=RUN_TIMEOUT_S,
    )
    assert result.stdout == "done\n"
    files = sorted(path.name for path in tmp_path.glob("prof-*-*.data"))
    assert len(files) >= 3, files
    # Two workers run for 0.7 s each; a worker that is killed loses its last samples.
    report = read_report(run, *files)
    assert seconds_in_kernel(report) > 1.0
    kind = "Process" if ending == "executor" else "PoolWorker"
    prefix = {"fork": "Fork", "spawn": "Spawn", "forkserver": "ForkServer"}[method] + kind
    workers = {f"{prefix}-{number}" for number in (1, 2)}
    assert workers <= {process["label"] for process in report["processes"]}, report["processes"]
    # The title is that of the program, not of a worker's command line.
    assert run(command(), "lines", *files).stdout.startswith("program.py · ")


def test_children_shorter_than_an_interval_have_their_wall_clock_time(run, tmp_path):
    (tmp_path / "kernel.py").write_text(
        "import os, time\n"
        "def work():\n"
        "    until = time.thread_time() + 0.004\n"
        "    while time.thread_time() < until: pass\n"
        "for _ in range(100):\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        work()\n"
        "        os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
    )
    report = json.loads(run(command(), "lines", "-s", "--wall", "--json", "-", "--", python(), "kernel.py").stdout)
    # At 199 per second, 0.4 s are 80 samples, with a sigma of 11 %. They also stand for the start of each child.
    [seconds] = [
        function["self_percent"] / 100 * report["weight"] / 1e9
        for function in report["functions"]
        if function["name"] == "work"
    ]
    assert 0.4 * (1 - 3 * 0.11) <= seconds <= 0.4 * (1 + 3 * 0.11) + 100 * 0.001, report["functions"]


@pytest.mark.parametrize(
    ("package", "source", "workers"),
    [
        ("joblib", JOBLIB.replace("BACKEND", "loky"), {"LokyProcess-1", "LokyProcess-2"}),
        ("joblib", JOBLIB.replace("BACKEND", "multiprocessing"), {"ForkPoolWorker-1", "ForkPoolWorker-2"}),
        ("joblib", JOBLIB.replace("BACKEND", "threading"), set()),
        ("distributed", DASK, {"dask worker 0", "dask worker 1"}),
    ],
    ids=["loky", "joblib multiprocessing", "joblib threading", "dask"],
)
def test_workers_are_in_the_bundle_of_the_program(run, tmp_path, package, source, workers):
    need_package(run, package)
    original_directory = tmp_path / "there"
    (original_directory / "images").mkdir(parents=True)
    program = write_program(original_directory, source)
    result = run(
        command(),
        "record",
        "--bundle",
        "-s",
        "-o",
        original_directory / "prof-%h-%p",
        "--",
        python(),
        program,
        timeout=RUN_TIMEOUT_S,
        JITLISTEN_DIR=original_directory / "images",
    )
    assert result.stdout == "done\n"
    (folder,) = original_directory.glob("prof-*")
    # Simulates another machine by moving the bundle and deleting the program and the images.
    shutil.move(folder, tmp_path / "moved")
    shutil.rmtree(original_directory)
    report = read_report(run, tmp_path / "moved")
    for process in report["processes"]:
        pathlib.Path(f"/tmp/perf-{process['pid']}.map").unlink(missing_ok=True)
    report = read_report(run, tmp_path / "moved")
    assert workers <= {process["label"] for process in report["processes"]}, report["processes"]
    # Threads share the time of the process, for which each waits.
    assert seconds_in_kernel(report) > (1.0 if workers else 0.5)
    assert "cannot be read" not in run(command(), "lines", tmp_path / "moved").stdout


def mpirun(run, count, *arguments, **environment):
    environment = {"OMPI_ALLOW_RUN_AS_ROOT": 1, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": 1, **environment}
    return run("mpirun", "-n", str(count), "--oversubscribe", *arguments, timeout=RUN_TIMEOUT_S, **environment)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ((), "jitlisten.perf.rank{}.data"),
        (("-o", "prof.data"), "prof.rank{}.data"),
        (("-o", "prof-%r-%q{JOB}.data"), "prof-{}-night.data"),
    ],
    ids=["default", "plain", "rank"],
)
def test_the_ranks_of_an_mpirun(run, tmp_path, name, expected):
    require_tool("mpirun")
    need_package(run, "mpi4py")
    program = write_program(tmp_path, MPI)
    result = mpirun(run, 4, command(), "record", *name, "--", python(), program, JOB="night")
    assert result.stdout == "4 ranks are done\n"
    moved_directory = tmp_path / "moved"
    moved_directory.mkdir()
    # Each recording is moved together with its images.
    for path in list(tmp_path.glob("*.data*")):
        shutil.move(path, moved_directory)
    files = [moved_directory / expected.format(rank) for rank in range(4)]
    assert sorted(path for path in moved_directory.iterdir() if path.is_file()) == files
    report = read_report(run, *files)
    assert sorted(process["rank"] for process in report["processes"]) == [0, 1, 2, 3], report["processes"]
    assert len(report["hosts"]) == 1
    assert "rank 3 (process" in run(command(), "lines", "--processes", *files).stdout
    assert min(seconds_in_kernel(read_report(run, file)) for file in files) > 0.4
    # As data: a folder, and a list of files.
    script = f"""
import jitlisten
folder = jitlisten.read({str(moved_directory)!r}, by_thread=True)
files = jitlisten.read({[str(file) for file in files]!r})
assert folder.data["samples"] == files.data["samples"]
kernel = [row for row in folder.thread_rows() if row["file"].endswith("kernel.py") and row["self"]]
assert {{row["rank"] for row in kernel}} == {{0, 1, 2, 3}}, kernel
assert all(row["host"] and row["tid"] for row in kernel)
"""
    run(python(), "-c", script)


# As torchrun does: a process for each rank, with variables that say which it is.
LAUNCHER = """
import os, subprocess, sys
ranks = [subprocess.Popen(sys.argv[1:], env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"}) for rank in range(2)]
sys.exit(max(rank.wait() for rank in ranks))
"""


def test_the_ranks_of_a_launcher_like_torchrun(run, tmp_path):
    (tmp_path / "task.py").write_text("import kernel\nkernel.task(0.5)\n")
    write_program(tmp_path, LAUNCHER)
    record = [command(), "record", "-o", "prof.data", "--", python(), "task.py"]
    run(python(), "program.py", *record, timeout=RUN_TIMEOUT_S)
    files = sorted(path.name for path in tmp_path.glob("*.data"))
    assert files == ["prof.rank0.data", "prof.rank1.data"]
    assert sorted(process["rank"] for process in read_report(run, *files)["processes"]) == [0, 1]


def size_of(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_the_ranks_of_an_mpirun_in_one_bundle(run, tmp_path):
    require_tool("mpirun")
    need_package(run, "mpi4py")
    original_directory = tmp_path / "there"
    original_directory.mkdir()
    program = write_program(original_directory, MPI)
    mpirun(run, 3, command(), "record", "-o", original_directory / "prof.data", "--", python(), program)
    files = [original_directory / f"prof.rank{rank}.data" for rank in range(3)]

    def stacks(*recordings):
        run(command(), "export", "-o", "stacks.folded", *recordings)
        return (tmp_path / "stacks.folded").read_text()

    original_stacks = stacks(*files)
    run(command(), "bundle", "-o", "one", files[0])
    run(command(), "bundle", "-o", "two", *files[1:])
    run(command(), "bundle", "-o", "all", original_directory)
    run(command(), "bundle", "--whole", "-o", "whole", files[0])
    assert size_of(tmp_path / "whole") > 5 * size_of(tmp_path / "one")
    # Recordings of another machine: a source differs.
    text = next((tmp_path / "two").rglob("kernel.py"))
    text.write_text(text.read_text() + "# another version")
    run(command(), "bundle", "-o", "both", "one", "two")
    shutil.rmtree(original_directory)
    for folder in [tmp_path / "all", tmp_path / "both"]:
        assert stacks(folder) == original_stacks
        report = read_report(run, folder)
        assert sorted(process["rank"] for process in report["processes"]) == [0, 1, 2]
        assert seconds_in_kernel(report) > 1.0
    assert size_of(tmp_path / "all") < 20e6
    assert (tmp_path / "both/2/root").is_dir() and not (tmp_path / "all/2").exists()
    # A bundle is replaced by another only when that is complete.
    (tmp_path / "broken.data").write_text("PERFILE2")
    run(command(), "bundle", "-o", "all", "broken.data", status=2)
    assert stacks(tmp_path / "all") == original_stacks
    run(command(), "bundle", "-o", "all", "one")
    assert stacks(tmp_path / "all.old") == original_stacks
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


WAITING = """
from mpi4py import MPI
import kernel

kernel.task(0.1)
MPI.COMM_WORLD.Barrier()
kernel.task(0.2 + 0.6 * MPI.COMM_WORLD.rank)
MPI.COMM_WORLD.Barrier()  # the ranks wait for the last
"""


@pytest.mark.parametrize("implementation", ["Open MPI", "MPICH"])
def test_ranks_that_wait_for_another(run, tmp_path, implementation):
    need_package(run, "mpi4py")
    program = write_program(tmp_path, WAITING)
    record = [command(), "record", "-o", "prof.data", "--", python(), program]
    if implementation == "MPICH":
        prefix = pinned_program("pools/bin/mpiexec").parents[1]
        environment = {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": prefix / "lib"}
        run(prefix / "bin/mpiexec", "-n", "3", *record, timeout=RUN_TIMEOUT_S, **environment)
    else:
        require_tool("mpirun")
        # Otherwise waiting ranks give up the processor, and have no samples on a busy machine.
        mpirun(run, 3, "--mca", "mpi_yield_when_idle", "0", *record)
    files = sorted(path.name for path in tmp_path.glob("prof*.data"))
    assert files == [f"prof.rank{rank}.data" for rank in range(3)]
    line = WAITING.splitlines().index("MPI.COMM_WORLD.Barrier()  # the ranks wait for the last") + 1
    script = f"""
import jitlisten
rows = jitlisten.read({files!r}, by_thread=True).thread_rows()
print([sum(row["self"] for row in rows if row["rank"] == rank and row["file"].endswith("program.py")
           and row["line"] == {line}) for rank in range(3)])
"""
    waiting = json.loads(run(python(), "-c", script).stdout)
    assert waiting[0] > waiting[2], waiting
    assert f"program.py:{line}" in run(command(), "lines", "--processes", *files).stdout


BUSY = """
import pathlib, sys, time

pathlib.Path(sys.argv[1]).touch()
print("ready", flush=True)
while not pathlib.Path(sys.argv[2]).exists() or time.process_time() < 0.5:
    pass
"""


def test_two_recorders_never_write_one_file(run, start, tmp_path):
    program = write_program(tmp_path, BUSY)
    for name in ["first", "second"]:
        # The names of the files that the two processes wait for.
        arguments = [("a", "b"), ("b", "a")]
        for path in "ab":
            (tmp_path / path).unlink(missing_ok=True)
        record = [command(), "record", "-o", f"{name}.data", "--", python(), program]
        other = start(*record, *arguments[0])
        result = run(*record, *arguments[1])
        assert other.process.wait(RUN_TIMEOUT_S) == 0
        files = [path for path in tmp_path.glob(f"{name}.data*") if path.is_file()]
        assert len(files) == 2 and not any(path.suffix == ".old" for path in files), files
        pids = {process["pid"] for process in read_report(run, *files)["processes"]}
        assert len(pids) == 2
        # Each recording is complete, with names from its own directory.
        for path in files:
            report = read_report(run, path)
            assert report["weight"] > 0.4e9 and any(file["path"].endswith("program.py") for file in report["files"])
        assert "another recorder is writing" in result.stderr + other.output_text()
    # Both have ended, so the name is free again.
    run(*record, *arguments[1])
    assert (tmp_path / "second.data.old").exists()


def test_an_unknown_directive_in_a_name_is_refused(run, tmp_path):
    program = write_program(tmp_path, "pass")
    for name, problem in [("prof-%x.data", "%x in a file name is unknown"), ("%q{NONE}.data", "NONE is not set")]:
        result = run(command(), "record", "-o", name, "--", python(), program, status=None)
        assert result.returncode != 0 and problem in result.stderr, result
