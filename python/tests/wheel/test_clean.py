"""`jitlisten clean` removes files of processes that have exited."""

import fcntl
import hashlib
import os
import pathlib
import shutil
import time

import pytest
from conftest import command, python

# These tests use the same file names in /tmp, so they must not run in parallel.
pytestmark = pytest.mark.xdist_group("clean")
#: Larger than any PID, because pid_max is at most 2^22.
UNUSED_PID = 5_000_001


@pytest.fixture
def leftovers(environment, tmp_path):
    """Files of dead and live processes. Their perf maps have to be in /tmp."""
    base = pathlib.Path(environment["JITLISTEN_DIR"]) / f"clean-{os.getpid()}"
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir()
    namespace = os.stat("/proc/self/ns/pid").st_ino
    start_time = open("/proc/self/stat").read().rsplit(")", 1)[1].split()[19]
    dead_owner = lambda pid, start_time=1: (pid, f"{pid} {start_time} {namespace}")
    live_owner = (os.getpid(), f"{os.getpid()} {start_time} {namespace}")
    owned_files = {
        "dead image": (*dead_owner(UNUSED_PID), base / f"image-{UNUSED_PID}-1/object-0.so"),
        "living image": (*live_owner, base / f"image-{os.getpid()}-{start_time}/object-0.so"),
        "locked image": (*dead_owner(UNUSED_PID, 2), base / f"image-{UNUSED_PID}-2/object-0.so"),
        # These workers belong to a run whose main process, the test itself, is alive.
        "image of a run": (
            UNUSED_PID,
            f"{UNUSED_PID} 3 {namespace} run={os.getpid()}-{start_time}-{namespace}",
            base / f"image-{UNUSED_PID}-3/object-0.so",
        ),
        "dead dump": (*dead_owner(UNUSED_PID), base / f"jitdump-{UNUSED_PID}-1/jit-{UNUSED_PID}.dump"),
        "living dump": (*live_owner, base / f"jitdump-{os.getpid()}-{start_time}/jit-{os.getpid()}.dump"),
    }
    files = {name: file for name, (_, _, file) in owned_files.items()}
    files["other"] = base / "notes.txt"
    files["dead map"] = pathlib.Path(f"/tmp/perf-{UNUSED_PID}.map")
    files["unsigned map"] = pathlib.Path(f"/tmp/perf-{UNUSED_PID + 1}.map")
    for file in files.values():
        file.parent.mkdir(exist_ok=True)
        file.write_text("x" * 1000)
    for _, owner, file in owned_files.values():
        (file.parent / "alive").write_text(f"jitlisten files of {owner}\n")
    files["dead map"].write_text(f"0 0 jitlisten {UNUSED_PID} 1 {namespace} alive\n1000 10 f\n")
    files["living map"] = pathlib.Path(f"/tmp/perf-{os.getpid()}.map")
    files["living map"].write_text(f"0 0 jitlisten {os.getpid()} {start_time} {namespace} alive\n")
    alive = files["locked image"].parent / "alive"
    with open(alive) as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield base, files
    for file in files.values():
        file.unlink(missing_ok=True)
    shutil.rmtree(base)


#: Restricts `clean` to these PIDs, because /tmp may hold perf maps of other dead processes.
CLEANED_PIDS = [UNUSED_PID, UNUSED_PID + 1, os.getpid()]
REMOVABLE = ["dead image", "dead dump", "dead map"]


def list_existing(files):
    return sorted(name for name, file in files.items() if file.exists())


def test_dry_run_says_and_does_nothing(run, leftovers):
    base, files = leftovers
    result = run(command(), "clean", "--dry-run", *CLEANED_PIDS, JITLISTEN_DIR=base)
    assert list_existing(files) == sorted(files)
    for name in REMOVABLE:
        path = files[name] if name.endswith("map") else files[name].parent
        assert str(path) in result.stdout
    assert "would be removed" in result.stdout


def test_what_dead_processes_have_left_goes_and_nothing_else(run, leftovers):
    base, files = leftovers
    result = run(command(), "clean", *CLEANED_PIDS, JITLISTEN_DIR=base)
    assert list_existing(files) == sorted(set(files) - set(REMOVABLE))
    assert not (base / f"image-{UNUSED_PID}-1").exists() and not (base / f"jitdump-{UNUSED_PID}-1").exists()
    assert "removed" in result.stdout and "KiB" in result.stdout
    second_result = run(command(), "clean", *CLEANED_PIDS, JITLISTEN_DIR=base)
    assert str(base) not in second_result.stdout


def test_maps_of_others_only_when_asked(run, leftovers):
    base, files = leftovers
    result = run(command(), "clean", "--all", *CLEANED_PIDS, JITLISTEN_DIR=base)
    assert not files["unsigned map"].exists() and files["living map"].exists()
    assert str(files["unsigned map"]) in result.stdout


def mtime_days_ago(days):
    return (time.time() - days * 86400,) * 2


def test_texts_of_cells_go_after_thirty_days(run, leftovers):
    base, _ = leftovers
    sources = base / "sources"
    # The package itself saves the cell source.
    code = (
        "import linecache; from jitlisten._lines import sources;"
        "linecache.cache['<cell>'] = (6, None, ['x = 1\\n'], '<cell>'); print(sources.path('<cell>'))"
    )
    saved = pathlib.Path(run(python(), "-c", code, JITLISTEN_DIR=base).stdout.strip())
    assert saved.parent == sources and (sources / "jitlisten-sources").is_file()
    content_hash = hashlib.sha256(b"x = 1\n").hexdigest()[:12]
    recent = sources / f"young-{content_hash}.py"
    user_files = [sources / name for name in ("backup-202401011230.py", "notes.py", "cell-0123456789ab.py")]
    for file, days in [(saved, 31), (recent, 29), *((file, 40) for file in user_files)]:
        file.write_text("x = 1\n")
        os.utime(file, mtime_days_ago(days))
    assert str(sources) not in run(command(), "clean", *CLEANED_PIDS, JITLISTEN_DIR=base).stdout
    result = run(command(), "clean", "--dry-run", JITLISTEN_DIR=base)
    assert f"6 B  {sources}" in result.stdout, "one of them"
    assert saved.exists()
    # No process has the PID 0, so `clean` examines the directory but no files of other processes.
    result = run(command(), "clean", "0", JITLISTEN_DIR=base)
    assert str(sources) in result.stdout
    assert not saved.exists() and recent.exists() and all(file.exists() for file in user_files)


#: Names of user files that resemble ours, by their directory, by their own name, or by their own name inside one of our
#: directories.
USER_FILES = [
    "sources/backup-202401011230.py",
    "sources/model.py",
    "jitlisten-report/jit-notes.txt",
    f"jitlisten-report/jit-{UNUSED_PID}.dump",
    "jitlisten-report/jit-analysis.ipynb",
    f"jitlisten-traces/jit-{UNUSED_PID}.dump",
    f"jitdump-{UNUSED_PID}-7/jit-{UNUSED_PID}.dump",
    f"image-{UNUSED_PID}-7/object-store.so",
    f"image-{UNUSED_PID}-7/object-0.so",
    f"image-{UNUSED_PID}-7/alive",
    f"image-{UNUSED_PID}-8/dead",
    f"image-{UNUSED_PID}-1/object-detector.so",
    f"image-{UNUSED_PID}-1/object-01.so",
    f"image-{UNUSED_PID}-1/jit-{UNUSED_PID}.dump",
    f"jitdump-{UNUSED_PID}-1/jit-notes.txt",
    f"jitdump-{UNUSED_PID}-1/jit-5.dump",
]


@pytest.mark.parametrize("options", [[], ["--all"]])
def test_files_of_the_user_with_such_names_stay(run, leftovers, options):
    base, files = leftovers
    for name in USER_FILES:
        (base / name).parent.mkdir(exist_ok=True)
        (base / name).write_text("precious")
        os.utime(base / name, mtime_days_ago(40))
    similar_map = pathlib.Path(f"/tmp/perf-0{UNUSED_PID}.map")
    similar_map.write_text(files["dead map"].read_text())
    try:
        run(command(), "clean", *options, *CLEANED_PIDS, 0, JITLISTEN_DIR=base)
        assert [name for name in USER_FILES if not (base / name).exists()] == []
        assert similar_map.exists() and not files["dead image"].exists() and not files["dead dump"].exists()
    finally:
        similar_map.unlink()


def test_the_library_s_own_tidying_leaves_files_of_the_user(run, leftovers):
    base, files = leftovers
    program = pathlib.Path(__file__).parent / "programs" / "kernel.py"
    for name in USER_FILES:
        (base / name).parent.mkdir(exist_ok=True)
        (base / name).write_text("precious")
    for directory in base.iterdir():
        if directory.is_dir() and directory.name != "sources":
            (directory / "dead").touch()
            os.utime(directory / "dead", mtime_days_ago(40))
    # Each process takes a limited time for it.
    for _ in range(20):
        run(command(), "run", "--sinks", "image,jitdump", "--", python(), program, "once", JITLISTEN_DIR=base)
        if not files["dead image"].exists() and not files["dead dump"].exists():
            break
    assert [name for name in USER_FILES if not (base / name).exists()] == []
    assert not files["dead image"].exists() and not files["dead dump"].exists()
    assert files["image of a run"].exists()


def test_images_of_a_program_that_has_ended(run, environment, tmp_path):
    directory = pathlib.Path(environment["JITLISTEN_DIR"]) / f"ended-{os.getpid()}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    program = pathlib.Path(__file__).parent / "programs" / "kernel.py"
    output = run(command(), "run", "--", python(), program, "once", JITLISTEN_DIR=directory).stdout
    pid = output.split()[1]
    assert list(directory.glob("image-*/object-*.so"))
    result = run(command(), "clean", pid, JITLISTEN_DIR=directory)
    assert "images" in result.stdout and not list(directory.iterdir())
    directory.rmdir()


def test_a_directory_that_a_killed_process_has_left(run, tmp_path):
    """Scratch directories are removed only if they have the exact name, the marker, a minimum age, private permissions
    and an unlocked lock."""
    names = ["jitlisten-top-a1B2c3", "jitlisten-lines-a1B2c3", "jitlisten-top-young1", "jitlisten-top-locked"]
    unrelated = [
        "jitlisten-top-notes",
        "jitlisten-top-shared",
        "jitlisten-top-linked",
        "jitlisten-topaz-a1B2c3",
        "jitlisten-top-a1B2c4",
    ]
    link_target = tmp_path / "elsewhere"
    link_target.mkdir(mode=0o700)
    for name in [*names, *unrelated]:
        if name != "jitlisten-top-linked":
            (tmp_path / name).mkdir(mode=0o700)
            (tmp_path / name / "output").write_text("text")
            (tmp_path / name / "top.perf.data.images").mkdir()
            if name != "jitlisten-top-a1B2c4":
                (tmp_path / name / "jitlisten-scratch").write_text("temporary files of jitlisten\n")
            os.utime(tmp_path / name, (time.time() - 100,) * 2)
    (tmp_path / "jitlisten-top-linked").symlink_to(link_target)
    (tmp_path / "jitlisten-top-shared").chmod(0o755)
    os.utime(tmp_path / "jitlisten-top-young1")
    lock = os.open(tmp_path / "jitlisten-top-locked", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    removable = ["jitlisten-lines-a1B2c3", "jitlisten-top-a1B2c3"]
    result = run(command(), "clean", "--dry-run", TMPDIR=tmp_path)
    assert all(str(tmp_path / name) in result.stdout for name in removable)
    run(command(), "clean", TMPDIR=tmp_path)
    os.close(lock)
    remaining = sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("jitlisten-"))
    assert remaining == sorted({*names, *unrelated} - set(removable))
