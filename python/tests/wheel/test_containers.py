"""Processes in mount and PID namespaces of their own, seen from outside."""

import json
import pathlib

from conftest import command, perf_map, python, wait_for
from spaces import Container, package


def maps(pid):
    return pathlib.Path(f"/proc/{pid}/maps").read_text()


def test_attach_where_the_package_is_visible(run, start):
    inside = Container(start)
    done = run(command(), "attach", inside.pid)
    # It says the number that the process has itself, of which its perf map has the name.
    assert "process 1: sinks on" in done.stdout
    assert "__main__.burn" in inside.perf_map() and not perf_map(inside.pid)
    assert "sinks on: none" in run(command(), "detach", inside.pid).stdout


def test_attach_where_it_is_not_says_why_and_reads_only(run, start):
    inside = Container(start, hidden=[package()])
    done = run(command(), "attach", inside.pid)
    assert "is in a container, which does not see" in done.stderr and "install jitlisten there" in done.stderr
    assert f"reading only" in done.stdout and "libjitlisten" not in maps(inside.pid)
    assert "__main__.burn" in inside.perf_map() and f"/proc/{inside.pid}/root/tmp/perf-1.map" in done.stdout


def test_the_map_read_from_outside_is_the_one_from_inside(run, start):
    inside = Container(start)
    run(command(), "attach", inside.pid, "--no-inject")
    outside = {line for line in inside.perf_map().splitlines() if "__main__.burn" in line}
    (inside.root / "tmp/perf-1.map").unlink()
    run(command(), "attach", inside.pid, "--sinks", "perfmap")
    assert outside == {line for line in inside.perf_map().splitlines() if "__main__.burn" in line} != set()


def test_watch(run, start, environment, tmp_path):
    inside = Container(start, hidden=[package()], program=("kernel.py", "later"))
    import subprocess

    watcher = subprocess.Popen(
        [str(command()), "attach", str(inside.pid), "--watch"], env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )
    try:
        wait_for(lambda: "__main__.burn" in inside.perf_map(), "the map")
        (tmp_path / "go").touch()
        wait_for(lambda: "__main__.compiled_later" in inside.perf_map(), "what came later")
        inside.outside.process.kill()
        said, _ = watcher.communicate(timeout=30)
        assert watcher.returncode == 0 and "more" in said
    finally:
        watcher.kill()
        watcher.wait()


def test_chroot(run, start, tmp_path):
    root = tmp_path / "root"
    # Of the old /tmp only this directory is needed, and it is not in sight any more.
    lines = ["mkdir -p /tmp/root", "mount --rbind / /tmp/root"]
    inside = Container(start, lines=lines, words="chroot /tmp/root")
    assert pathlib.Path(f"/proc/{inside.pid}/root").readlink() != pathlib.Path("/") and not root.exists()
    assert "sinks on: " in run(command(), "attach", inside.pid).stdout
    assert "__main__.burn" in inside.perf_map()


def test_doctor(run, start):
    inside = Container(start, run=True)
    found = json.loads(run(command(), "doctor", "--json", inside.pid).stdout)
    about = {finding["about"]: finding for finding in found["program"]}
    assert about["library"]["state"] == "ok" and "libllvmlite" in about["LLVM"]["found"] and "sink" not in about


def test_no_place_to_write(run, start):
    """Attaching writes no file; of the sinks, those work that have a place."""
    inside = Container(start, lines=["mount -o remount,ro /tmp"], program=("kernel.py", "nocache"))
    done = run(command(), "attach", "--no-inject", inside.pid, status=2)
    assert "Read-only file system" in done.stderr and done.stderr.count("\n") == 1
    assert "libjitlisten" not in maps(inside.pid)
    assert "sinks on: unwind, image;" in run(command(), "attach", inside.pid).stdout


def test_inside_of_one(start, environment, tmp_path):
    """The command in the same container as the process."""
    inside = Container(start, program=("attached.py", str(command())))
    wait_for(lambda: inside.outside.has_said("attached 0"), "the end of the command")
    assert "sinks on: " in inside.outside.said()
    assert python().exists()
