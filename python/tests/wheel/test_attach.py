"""`jitlisten attach` and `detach` on processes without the library and on processes with the library preloaded."""

import pathlib
import random
import subprocess
import time

import pytest
from conftest import PROGRAMS, command, perf_map, python, require_tool, wait_for

KERNEL = PROGRAMS / "kernel.py"


def read_maps(pid):
    return pathlib.Path(f"/proc/{pid}/maps").read_text()


def test_what_is_compiled_gets_its_names_and_what_comes_everything(run, start, tmp_path):
    program = start(python(), KERNEL, "later")
    assert "libjitlisten" not in read_maps(program.pid)
    result = run(command(), "attach", program.pid)
    assert "sinks on: " in result.stdout and "compiled functions" in result.stdout
    assert "__main__.burn" in perf_map(program.pid)
    assert "/object-" in read_maps(program.pid)
    (tmp_path / "go").touch()
    wait_for(lambda: program.has_printed("compiled"), "the second function")
    assert "__main__.compiled_later" in perf_map(program.pid)
    # Attaching again is allowed, even with another sink.
    assert "jitdump" in run(command(), "attach", program.pid, "--sinks", "jitdump").stdout
    assert "sinks on: none" in run(command(), "detach", program.pid).stdout
    assert not program.has_ended()


@pytest.mark.parametrize("wait", ["blocked", "sleeping", "selecting"])
def test_a_main_thread_that_waits_for_ever(run, start, tmp_path, wait):
    program = start(python(), KERNEL, wait)
    result = run(command(), "attach", program.pid)
    assert "sinks on: " in result.stdout
    assert "__main__.burn" in perf_map(program.pid)
    (tmp_path / "go").touch()
    wait_for(lambda: program.has_printed("compiled"), "the second function")
    assert "__main__.compiled_later" in perf_map(program.pid)
    assert "sinks on: none" in run(command(), "detach", program.pid).stdout
    assert not program.has_ended()


def test_sinks_of_a_preloaded_process_on_demand(run, start):
    program = start(command(), "run", "--sinks", "unwind", "--", python(), KERNEL)
    assert perf_map(program.pid) == "" and "/object-" not in read_maps(program.pid)
    assert "image" in run(command(), "attach", program.pid, "--sinks", "image,perfmap").stdout
    assert "/object-" in read_maps(program.pid) and "__main__.burn" in perf_map(program.pid)
    assert "sinks on: none" in run(command(), "detach", program.pid).stdout


def test_the_lists_of_modules_on_demand(run, start, tmp_path):
    source, library = tmp_path / "name_of.c", tmp_path / "name_of.so"
    source.write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n"
        "const char *name_of(void *code) { Dl_info info; return dladdr(code, &info) ? info.dli_sname : 0; }\n"
    )
    run(require_tool("cc"), "-shared", "-fPIC", "-o", library, source)
    program = start(python(), PROGRAMS / "named.py", library)
    assert "modules" in run(command(), "attach", program.pid, "--sinks", "image,unwind,modules").stdout
    wait_for(lambda: "twice" in program.output_text(), "the name")
    assert "sinks on: none" in run(command(), "detach", program.pid).stdout
    wait_for(lambda: program.output_text().endswith("named None\n"), "the end of the name")
    assert not program.has_ended()


def test_reading_only(run, start, environment, tmp_path):
    program = start(python(), KERNEL, "later")
    maps_before = read_maps(program.pid)
    watcher = subprocess.Popen(
        [str(command()), "attach", str(program.pid), "--no-inject", "--watch"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(lambda: "__main__.burn" in perf_map(program.pid), "the map")
        assert "libjitlisten" not in read_maps(program.pid) and len(read_maps(program.pid)) == len(maps_before)
        (tmp_path / "go").touch()
        wait_for(lambda: "__main__.compiled_later" in perf_map(program.pid), "what came later")
        program.process.kill()
        program.process.wait()
        watch_output, _ = watcher.communicate(timeout=30)
        assert watcher.returncode == 0 and "reading only" in watch_output and "more" in watch_output
    finally:
        watcher.kill()
        pathlib.Path(f"/tmp/perf-{program.pid}.map").unlink(missing_ok=True)


def test_names_read_from_outside_are_those_from_inside(run, start):
    program = start(python(), KERNEL)
    run(command(), "attach", program.pid, "--no-inject")
    names_outside = {line for line in perf_map(program.pid).splitlines() if "__main__.burn" in line}
    pathlib.Path(f"/tmp/perf-{program.pid}.map").unlink()
    assert "sinks on: " in run(command(), "attach", program.pid, "--sinks", "perfmap").stdout
    names_inside = {line for line in perf_map(program.pid).splitlines() if "__main__.burn" in line}
    assert names_outside == names_inside != set()


def test_a_python_that_compiles_nothing(run, start, tmp_path):
    (tmp_path / "idle.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    program = start(python(), "idle.py")
    result = run(command(), "attach", program.pid, "--no-inject", status=2)
    assert "no LLVM found" in result.stderr
    result = run(command(), "detach", program.pid, status=2)
    assert "does not have jitlisten" in result.stderr


def test_a_process_without_memory_is_read_only(run, start, tmp_path):
    """If no page can be mapped in the process, attach reads the process's memory from outside."""
    (tmp_path / "full.py").write_text(
        "import resource, runpy, sys\n"
        "import numba\n"
        "numba.njit(lambda x: x + 1)(1)\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        "resource.setrlimit(resource.RLIMIT_AS, (pages * 4096,) * 2)\n"
        "print('ready', flush=True)\n"
        "while True: pass\n"
    )
    program = start(python(), "full.py")
    result = run(command(), "attach", program.pid)
    assert "it is out of memory" in result.stderr and "from outside only" in result.stderr
    assert "<lambda>" in perf_map(program.pid) or "lambda" in perf_map(program.pid)
    assert not program.has_ended()


def read_signal_masks(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return [line for line in status if line.startswith(("SigBlk", "SigIgn"))]


def test_a_process_outlives_an_attach_that_is_killed(start, environment, tmp_path):
    """Kills attach at random times. In an earlier version, 67 of 2,153 kills also ended the target process, because its
    injected calls could only return to the tracer."""
    (tmp_path / "computes.py").write_text(
        "import math\n"
        "xs = [i * 0.5 for i in range(50)]\n"
        "expected = sum(math.sin(x) * x for x in xs)\n"
        "print('ready', flush=True)\n"
        "while sum(math.sin(x) * x for x in xs) == expected: pass\n"
    )
    program = start(python(), "computes.py")
    masks_before = read_signal_masks(program.pid)
    for _ in range(200):
        attach = subprocess.Popen(
            [str(command()), "attach", str(program.pid)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(random.uniform(0, 0.12))
        attach.kill()
        attach.wait()
        assert not program.has_ended(), program.process.returncode
    # The library blocks signals while it works.
    wait_for(lambda: read_signal_masks(program.pid) == masks_before, "the signal mask")
