"""Attaching from outside to processes in private mount and PID namespaces."""

import json
import pathlib

from conftest import command, perf_map, python, wait_for
from spaces import Container, package_directory


def read_maps(pid):
    return pathlib.Path(f"/proc/{pid}/maps").read_text()


def test_attach_where_the_package_is_visible(run, start):
    container = Container(start)
    result = run(command(), "attach", container.pid)
    # Attach prints the pid inside the container, which also names the perf map.
    assert "process 1: sinks on" in result.stdout
    assert "__main__.burn" in container.perf_map() and not perf_map(container.pid)
    assert "sinks on: none" in run(command(), "detach", container.pid).stdout


def test_attach_where_it_is_not_says_why_and_reads_only(run, start):
    container = Container(start, hidden_directories=[package_directory()])
    result = run(command(), "attach", container.pid)
    assert "is in a container, which does not see" in result.stderr and "install jitlisten there" in result.stderr
    assert "reading only" in result.stdout and "libjitlisten" not in read_maps(container.pid)
    assert "__main__.burn" in container.perf_map() and f"/proc/{container.pid}/root/tmp/perf-1.map" in result.stdout


def test_the_map_read_from_outside_is_the_one_from_inside(run, start):
    container = Container(start)
    run(command(), "attach", container.pid, "--no-inject")
    outside = {line for line in container.perf_map().splitlines() if "__main__.burn" in line}
    (container.root / "tmp/perf-1.map").unlink()
    run(command(), "attach", container.pid, "--sinks", "perfmap")
    assert outside == {line for line in container.perf_map().splitlines() if "__main__.burn" in line} != set()


def test_watch(run, start, environment, tmp_path):
    container = Container(start, hidden_directories=[package_directory()], program=("kernel.py", "later"))
    import subprocess

    watcher = subprocess.Popen(
        [str(command()), "attach", str(container.pid), "--watch"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(lambda: "__main__.burn" in container.perf_map(), "the map")
        (tmp_path / "go").touch()
        wait_for(lambda: "__main__.compiled_later" in container.perf_map(), "what came later")
        container.launcher.process.kill()
        watch_output, _ = watcher.communicate(timeout=30)
        assert watcher.returncode == 0 and "more" in watch_output
    finally:
        watcher.kill()
        watcher.wait()


def test_chroot(run, start, tmp_path):
    root = tmp_path / "root"
    # Bind-mounts /tmp/root, and hides the rest of the old /tmp.
    mount_commands = ["mkdir -p /tmp/root", "mount --rbind / /tmp/root"]
    container = Container(start, mount_commands=mount_commands, command_prefix="chroot /tmp/root")
    assert pathlib.Path(f"/proc/{container.pid}/root").readlink() != pathlib.Path("/") and not root.exists()
    assert "sinks on: " in run(command(), "attach", container.pid).stdout
    assert "__main__.burn" in container.perf_map()


def test_doctor(run, start):
    container = Container(start, under_jitlisten=True)
    report = json.loads(run(command(), "doctor", "--json", container.pid).stdout)
    findings = {finding["about"]: finding for finding in report["program"]}
    assert (
        findings["library"]["state"] == "ok" and "libllvmlite" in findings["LLVM"]["found"] and "sink" not in findings
    )


def test_no_place_to_write(run, start):
    """Attaching without injection writes no file and fails. Ordinary attaching enables those sinks that need no
    writable /tmp."""
    container = Container(start, mount_commands=["mount -o remount,ro /tmp"], program=("kernel.py", "nocache"))
    result = run(command(), "attach", "--no-inject", container.pid, status=2)
    assert "Read-only file system" in result.stderr and result.stderr.count("\n") == 1
    assert "libjitlisten" not in read_maps(container.pid)
    assert "sinks on: unwind, image;" in run(command(), "attach", container.pid).stdout


def test_inside_of_one(start, environment, tmp_path):
    """Runs the command in the same container as the process."""
    container = Container(start, program=("attached.py", str(command())))
    wait_for(lambda: container.launcher.has_printed("attached 0"), "the end of the command")
    assert "sinks on: " in container.launcher.output_text()
    assert python().exists()
