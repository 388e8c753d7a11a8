"""`jitlisten clean`."""

import fcntl
import hashlib
import os
import pathlib
import shutil
import time

import pytest
from conftest import command, python

# Their files in /tmp have the same names.
pytestmark = pytest.mark.xdist_group("clean")
#: No process has such a number: pid_max is at most 2^22.
UNUSED_PID = 5_000_001


@pytest.fixture
def left(environment, tmp_path):
    """Files of dead and living processes; the perf maps are in /tmp, because that is where they are."""
    base = pathlib.Path(environment["JITLISTEN_DIR"]) / f"clean-{os.getpid()}"
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir()
    namespace = os.stat("/proc/self/ns/pid").st_ino
    start = open("/proc/self/stat").read().rsplit(")", 1)[1].split()[19]
    dead = lambda pid, start=1: (pid, f"{pid} {start} {namespace}")
    own = (os.getpid(), f"{os.getpid()} {start} {namespace}")
    marked = {
        "dead image": (*dead(UNUSED_PID), base / f"image-{UNUSED_PID}-1/object-0.so"),
        "living image": (*own, base / f"image-{os.getpid()}-{start}/object-0.so"),
        "locked image": (*dead(UNUSED_PID, 2), base / f"image-{UNUSED_PID}-2/object-0.so"),
        # The run of these workers is this process, which is not over.
        "image of a run": (UNUSED_PID, f"{UNUSED_PID} 3 {namespace} run={os.getpid()}-{start}-{namespace}",
                           base / f"image-{UNUSED_PID}-3/object-0.so"),
        "dead dump": (*dead(UNUSED_PID), base / f"jitdump-{UNUSED_PID}-1/jit-{UNUSED_PID}.dump"),
        "living dump": (*own, base / f"jitdump-{os.getpid()}-{start}/jit-{os.getpid()}.dump"),
    }
    files = {name: file for name, (_, _, file) in marked.items()}
    files["other"] = base / "notes.txt"
    files["dead map"] = pathlib.Path(f"/tmp/perf-{UNUSED_PID}.map")
    files["unsigned map"] = pathlib.Path(f"/tmp/perf-{UNUSED_PID + 1}.map")
    for file in files.values():
        file.parent.mkdir(exist_ok=True)
        file.write_text("x" * 1000)
    for _, owner, file in marked.values():
        (file.parent / "alive").write_text(f"jitlisten files of {owner}\n")
    files["dead map"].write_text(f"0 0 jitlisten {UNUSED_PID} 1 {namespace} alive\n1000 10 f\n")
    files["living map"] = pathlib.Path(f"/tmp/perf-{os.getpid()}.map")
    files["living map"].write_text(f"0 0 jitlisten {os.getpid()} {start} {namespace} alive\n")
    alive = files["locked image"].parent / "alive"
    with open(alive) as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield base, files
    for file in files.values():
        file.unlink(missing_ok=True)
    shutil.rmtree(base)


#: /tmp is everybody's: other maps of dead processes are none of this test's business.
PIDS = [UNUSED_PID, UNUSED_PID + 1, os.getpid()]
DEAD = ["dead image", "dead dump", "dead map"]


def there(files):
    return sorted(name for name, file in files.items() if file.exists())


def test_dry_run_says_and_does_nothing(run, left):
    base, files = left
    done = run(command(), "clean", "--dry-run", *PIDS, JITLISTEN_DIR=base)
    assert there(files) == sorted(files)
    for name in DEAD:
        shown = files[name] if name.endswith("map") else files[name].parent
        assert str(shown) in done.stdout
    assert "would be removed" in done.stdout


def test_what_dead_processes_have_left_goes_and_nothing_else(run, left):
    base, files = left
    done = run(command(), "clean", *PIDS, JITLISTEN_DIR=base)
    assert there(files) == sorted(set(files) - set(DEAD))
    assert not (base / f"image-{UNUSED_PID}-1").exists() and not (base / f"jitdump-{UNUSED_PID}-1").exists()
    assert "removed" in done.stdout and "KiB" in done.stdout
    again = run(command(), "clean", *PIDS, JITLISTEN_DIR=base)
    assert str(base) not in again.stdout


def test_maps_of_others_only_when_asked(run, left):
    base, files = left
    done = run(command(), "clean", "--all", *PIDS, JITLISTEN_DIR=base)
    assert not files["unsigned map"].exists() and files["living map"].exists()
    assert str(files["unsigned map"]) in done.stdout


def ago(days):
    return (time.time() - days * 86400,) * 2


def test_texts_of_cells_go_after_thirty_days(run, left):
    base, _ = left
    sources = base / "sources"
    # As the library makes it.
    save = (
        "import linecache; from jitlisten._lines import sources;"
        "linecache.cache['<cell>'] = (6, None, ['x = 1\\n'], '<cell>'); print(sources.path('<cell>'))"
    )
    saved = pathlib.Path(run(python(), "-c", save, JITLISTEN_DIR=base).stdout.strip())
    assert saved.parent == sources and (sources / "jitlisten-sources").is_file()
    digest = hashlib.sha256(b"x = 1\n").hexdigest()[:12]
    young = sources / f"young-{digest}.py"
    users = [sources / name for name in ("backup-202401011230.py", "notes.py", "cell-0123456789ab.py")]
    for file, days in [(saved, 31), (young, 29), *((file, 40) for file in users)]:
        file.write_text("x = 1\n")
        os.utime(file, ago(days))
    assert str(sources) not in run(command(), "clean", *PIDS, JITLISTEN_DIR=base).stdout
    done = run(command(), "clean", "--dry-run", JITLISTEN_DIR=base)
    assert f"6 B  {sources}" in done.stdout, "one of them"
    assert saved.exists()
    # As a process of number 0, which there is not.
    done = run(command(), "clean", "0", JITLISTEN_DIR=base)
    assert str(sources) in done.stdout
    assert not saved.exists() and young.exists() and all(file.exists() for file in users)


#: Names that look like ours: of directories, of files in them and of files in directories of ours.
USERS = [
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


@pytest.mark.parametrize("all_", [[], ["--all"]])
def test_files_of_the_user_with_such_names_stay(run, left, all_):
    base, files = left
    for name in USERS:
        (base / name).parent.mkdir(exist_ok=True)
        (base / name).write_text("precious")
        os.utime(base / name, ago(40))
    copy = pathlib.Path(f"/tmp/perf-0{UNUSED_PID}.map")
    copy.write_text(files["dead map"].read_text())
    try:
        run(command(), "clean", *all_, *PIDS, 0, JITLISTEN_DIR=base)
        assert [name for name in USERS if not (base / name).exists()] == []
        assert copy.exists() and not files["dead image"].exists() and not files["dead dump"].exists()
    finally:
        copy.unlink()


def test_the_library_s_own_tidying_leaves_files_of_the_user(run, left):
    base, files = left
    program = pathlib.Path(__file__).parent / "programs" / "kernel.py"
    for name in USERS:
        (base / name).parent.mkdir(exist_ok=True)
        (base / name).write_text("precious")
    for directory in base.iterdir():
        if directory.is_dir() and directory.name != "sources":
            (directory / "dead").touch()
            os.utime(directory / "dead", ago(40))
    run(command(), "run", "--sinks", "image,jitdump", "--", python(), program, "once", JITLISTEN_DIR=base)
    assert [name for name in USERS if not (base / name).exists()] == []
    assert not files["dead image"].exists() and not files["dead dump"].exists()
    assert files["image of a run"].exists()


def test_images_of_a_program_that_has_ended(run, environment, tmp_path):
    place = pathlib.Path(environment["JITLISTEN_DIR"]) / f"ended-{os.getpid()}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    program = pathlib.Path(__file__).parent / "programs" / "kernel.py"
    said = run(command(), "run", "--", python(), program, "once", JITLISTEN_DIR=place).stdout
    pid = said.split()[1]
    assert list(place.glob("image-*/object-*.so"))
    done = run(command(), "clean", pid, JITLISTEN_DIR=place)
    assert "images" in done.stdout and not list(place.iterdir())
    place.rmdir()


def test_a_directory_that_a_killed_process_has_left(run, tmp_path):
    """Of its exact name, with the marker, old enough, private, and with a lock that nobody holds."""
    names = ["jitlisten-top-a1B2c3", "jitlisten-lines-a1B2c3", "jitlisten-top-young1", "jitlisten-top-locked"]
    others = ["jitlisten-top-notes", "jitlisten-top-shared", "jitlisten-top-linked", "jitlisten-topaz-a1B2c3", "jitlisten-top-a1B2c4"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    for name in [*names, *others]:
        if name != "jitlisten-top-linked":
            (tmp_path / name).mkdir(mode=0o700)
            (tmp_path / name / "output").write_text("text")
            (tmp_path / name / "top.perf.data.images").mkdir()
            if name != "jitlisten-top-a1B2c4":
                (tmp_path / name / "jitlisten-scratch").write_text("temporary files of jitlisten\n")
            os.utime(tmp_path / name, (time.time() - 100,) * 2)
    (tmp_path / "jitlisten-top-linked").symlink_to(elsewhere)
    (tmp_path / "jitlisten-top-shared").chmod(0o755)
    os.utime(tmp_path / "jitlisten-top-young1")
    lock = os.open(tmp_path / "jitlisten-top-locked", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    dead = ["jitlisten-lines-a1B2c3", "jitlisten-top-a1B2c3"]
    done = run(command(), "clean", "--dry-run", TMPDIR=tmp_path)
    assert all(str(tmp_path / name) in done.stdout for name in dead)
    run(command(), "clean", TMPDIR=tmp_path)
    os.close(lock)
    left = sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("jitlisten-"))
    assert left == sorted({*names, *others} - set(dead))
