"""`jitlisten clean`."""

import fcntl
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
    files = {
        "dead image": base / f"image-{UNUSED_PID}-1/object-0.so",
        "living image": base / f"image-{os.getpid()}-{start}/object-0.so",
        "locked image": base / f"image-{UNUSED_PID}-2/object-0.so",
        "dead dump": base / f"jitlisten-abc123/jit-{UNUSED_PID}.dump",
        "living dump": base / f"jitlisten-abc124/jit-{os.getpid()}.dump",
        "other": base / "notes.txt",
        "dead map": pathlib.Path(f"/tmp/perf-{UNUSED_PID}.map"),
        "unsigned map": pathlib.Path(f"/tmp/perf-{UNUSED_PID + 1}.map"),
    }
    for file in files.values():
        file.parent.mkdir(exist_ok=True)
        file.write_text("x" * 1000)
    files["dead map"].write_text(f"0 0 jitlisten {UNUSED_PID} 1 {namespace} alive\n1000 10 f\n")
    files["living map"] = pathlib.Path(f"/tmp/perf-{os.getpid()}.map")
    files["living map"].write_text(f"0 0 jitlisten {os.getpid()} {start} {namespace} alive\n")
    alive = files["locked image"].parent / "alive"
    with open(alive, "w") as lock:
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
    assert not (base / f"image-{UNUSED_PID}-1").exists() and not (base / "jitlisten-abc123").exists()
    assert "removed" in done.stdout and "KiB" in done.stdout
    again = run(command(), "clean", *PIDS, JITLISTEN_DIR=base)
    assert str(base) not in again.stdout


def test_maps_of_others_only_when_asked(run, left):
    base, files = left
    done = run(command(), "clean", "--all", *PIDS, JITLISTEN_DIR=base)
    assert not files["unsigned map"].exists() and files["living map"].exists()
    assert str(files["unsigned map"]) in done.stdout


def test_texts_of_cells_go_after_thirty_days(run, left):
    base, _ = left
    sources = base / "sources"
    sources.mkdir()
    ago = lambda days: (time.time() - days * 86400,) * 2
    for name, days in [("cell-0123456789ab.py", 31), ("cell-0123456789ac.py", 29), ("notes.py", 31)]:
        (sources / name).write_text("x = 1\n")
        os.utime(sources / name, ago(days))
    assert str(sources) not in run(command(), "clean", *PIDS, JITLISTEN_DIR=base).stdout
    done = run(command(), "clean", "--dry-run", JITLISTEN_DIR=base)
    assert f"6 B  {sources}" in done.stdout, "one of them"
    assert len(list(sources.iterdir())) == 3
    # As a process of number 0, which there is not.
    done = run(command(), "clean", "0", JITLISTEN_DIR=base)
    assert str(sources) in done.stdout
    assert sorted(file.name for file in sources.iterdir()) == ["cell-0123456789ac.py", "notes.py"]


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
    """Of its exact name, old enough, private, and with a lock that nobody holds."""
    names = ["jitlisten-top-a1B2c3", "jitlisten-lines-a1B2c3", "jitlisten-top-young1", "jitlisten-top-locked"]
    others = ["jitlisten-top-notes", "jitlisten-top-shared", "jitlisten-top-linked", "jitlisten-topaz-a1B2c3"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    for name in [*names, *others]:
        if name != "jitlisten-top-linked":
            (tmp_path / name).mkdir(mode=0o700)
            (tmp_path / name / "output").write_text("text")
            (tmp_path / name / "top.perf.data.images").mkdir()
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
