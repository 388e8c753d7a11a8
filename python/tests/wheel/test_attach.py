"""`jitlisten attach` and `detach`: a process that knows nothing of us, and one that was preloaded."""

import os
import pathlib
import subprocess
import sys

import pytest
from conftest import PROGRAMS, command, perf_map, python, wait_for

KERNEL = PROGRAMS / "kernel.py"
UNUSED_PID = 5_000_003
HOW = "by ptrace" if sys.version_info < (3, 14) else "by sys.remote_exec"


def maps(pid):
    return pathlib.Path(f"/proc/{pid}/maps").read_text()


def test_what_is_compiled_gets_its_names_and_what_comes_everything(run, start, tmp_path):
    program = start(python(), KERNEL, "later")
    assert "libjitlisten" not in maps(program.pid)
    done = run(command(), "attach", program.pid)
    assert HOW in done.stdout and "compiled functions" in done.stdout
    assert "__main__.burn" in perf_map(program.pid)
    assert "/object-" in maps(program.pid)
    (tmp_path / "go").touch()
    wait_for(lambda: program.has_said("compiled"), "the second function")
    assert "__main__.compiled_later" in perf_map(program.pid)
    # Twice is fine, and so is another sink.
    assert "jitdump" in run(command(), "attach", program.pid, "--sinks", "jitdump").stdout
    assert "sinks on: none" in run(command(), "detach", program.pid).stdout
    assert not program.has_ended()
    assert list(pathlib.Path("/tmp").glob(f"jitlisten-attach-{program.pid}-*")) == []


def test_a_main_thread_that_waits_for_ever(run, start):
    program = start(python(), KERNEL, "blocked")
    done = run(command(), "attach", program.pid)
    assert HOW in done.stdout
    assert "__main__.burn" in perf_map(program.pid)
    assert not program.has_ended()


def test_sinks_of_a_preloaded_process_on_demand(run, start):
    program = start(command(), "run", "--sinks", "unwind", "--", python(), KERNEL)
    assert perf_map(program.pid) == "" and "/object-" not in maps(program.pid)
    assert "image" in run(command(), "attach", program.pid, "--sinks", "image,perfmap").stdout
    assert "/object-" in maps(program.pid) and "__main__.burn" in perf_map(program.pid)
    assert "sinks on: none" in run(command(), "detach", program.pid).stdout


def test_reading_only(run, start, environment, tmp_path):
    program = start(python(), KERNEL, "later")
    before = maps(program.pid)
    watcher = subprocess.Popen(
        [str(command()), "attach", str(program.pid), "--no-inject", "--watch"],
        env=environment, stdout=subprocess.PIPE, text=True,
    )
    try:
        wait_for(lambda: "__main__.burn" in perf_map(program.pid), "the map")
        assert "libjitlisten" not in maps(program.pid) and len(maps(program.pid)) == len(before)
        (tmp_path / "go").touch()
        wait_for(lambda: "__main__.compiled_later" in perf_map(program.pid), "what came later")
        program.process.kill()
        program.process.wait()
        said, _ = watcher.communicate(timeout=30)
        assert watcher.returncode == 0 and "reading only" in said and "more" in said
    finally:
        watcher.kill()
        pathlib.Path(f"/tmp/perf-{program.pid}.map").unlink(missing_ok=True)


def test_names_read_from_outside_are_those_from_inside(run, start):
    program = start(python(), KERNEL)
    run(command(), "attach", program.pid, "--no-inject")
    outside = {line for line in perf_map(program.pid).splitlines() if "__main__.burn" in line}
    pathlib.Path(f"/tmp/perf-{program.pid}.map").unlink()
    assert HOW in run(command(), "attach", program.pid, "--sinks", "perfmap").stdout
    inside = {line for line in perf_map(program.pid).splitlines() if "__main__.burn" in line}
    assert outside == inside != set()


def test_a_python_that_compiles_nothing(run, start, tmp_path):
    (tmp_path / "idle.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    program = start(python(), "idle.py")
    done = run(command(), "attach", program.pid, "--no-inject", status=2)
    assert "has no LLVM" in done.stderr
    done = run(command(), "detach", program.pid, status=2)
    assert "does not have jitlisten" in done.stderr


@pytest.mark.parametrize("verb", ["attach", "detach"])
def test_processes_that_are_not_there(run, verb):
    assert f"there is no process {UNUSED_PID}" in run(command(), verb, UNUSED_PID, status=2).stderr
    ended = subprocess.Popen(["true"])
    wait_for(lambda: " Z " in pathlib.Path(f"/proc/{ended.pid}/stat").read_text(), "the process to end")
    assert "ended already" in run(command(), verb, ended.pid, status=2).stderr
    ended.wait()


def test_processes_of_others(environment, start):
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    program = start(python(), KERNEL)
    binary = command()
    done = subprocess.run(
        [str(binary), "attach", str(program.pid)], env=environment, capture_output=True, text=True, cwd="/",
        preexec_fn=lambda: os.setuid(65534),
    ) if os.access(binary, os.X_OK) else None
    if done is None or "Permission denied: " in done.stderr:
        pytest.skip("another user cannot get at the installed command")
    assert done.returncode == 2 and "belongs to user 0" in done.stderr
