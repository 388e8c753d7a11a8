"""`jitlisten record` with kernel events and sinks, its bundles, and its effects on the recorded program."""

import json
import platform
import shutil
import signal

import pytest
from conftest import PROGRAMS, command, perf_map, python, require_tool, wait_for

RUN_TIMEOUT_S = 300


def test_a_bundle_is_all_that_a_reader_needs(run, tmp_path):
    original_directory = tmp_path / "there"
    (original_directory / "images").mkdir(parents=True)
    program = original_directory / "kernel.py"
    shutil.copyfile(PROGRAMS / "kernel.py", program)
    result = run(
        command(),
        "record",
        "--bundle",
        "-o",
        original_directory / "folder",
        "--",
        python(),
        program,
        "work",
        timeout=RUN_TIMEOUT_S,
        JITLISTEN_DIR=original_directory / "images",
    )
    assert "folder" in result.stderr
    # Simulates another machine by moving the bundle and deleting the sources and images.
    shutil.move(original_directory / "folder", tmp_path / "moved")
    shutil.rmtree(original_directory)
    text = run(command(), "lines", tmp_path / "moved").stdout
    assert "total += (i % 7) * 0.5" in text and "cannot be read" not in text
    report = json.loads(run(command(), "lines", "--json", "-", tmp_path / "moved" / "perf.data").stdout)
    assert report["compiled"] > 0
    rejected = run(command(), "record", "--bundle", "-o", tmp_path, "--", python(), "-c", "", status=2)
    assert "root, home or working directory" in rejected.stderr and (tmp_path / "moved").is_dir()


def test_an_event_is_counted(run, tmp_path):
    data = tmp_path / "faults.data"
    program = "import numpy as n\nfor i in range(60): n.ones(1 << 21)\n"
    run(command(), "record", "-e", "page-faults", "-o", data, "--", python(), "-c", program, timeout=RUN_TIMEOUT_S)
    assert "samples of page-faults" in run(command(), "lines", data).stdout
    rejected = run(command(), "record", "-e", "nonsense", "-o", data, "--", python(), "-c", "", status=2)
    assert "perf list" in rejected.stderr


def test_the_folder_of_a_bundle_is_named_by_host_and_process(run, tmp_path):
    run(
        command(),
        "record",
        "--bundle",
        "-o",
        "prof-%h-%p",
        "--",
        python(),
        PROGRAMS / "kernel.py",
        "once",
        timeout=RUN_TIMEOUT_S,
    )
    (folder,) = tmp_path.glob("prof-*")
    host = platform.node()
    assert folder.name.startswith(f"prof-{host}-") and folder.name.rsplit("-", 1)[1].isdigit()
    assert (folder / "perf.data").is_file() and (folder / "root").is_dir()


def test_an_earlier_bundle_is_kept_if_nothing_replaces_it(run, tmp_path):
    run(
        command(),
        "record",
        "--bundle",
        "-o",
        "b",
        "--",
        python(),
        PROGRAMS / "kernel.py",
        "once",
        timeout=RUN_TIMEOUT_S,
    )
    files = sorted(tmp_path.rglob("*"))
    missing = run(command(), "record", "--bundle", "-o", "b", "--", tmp_path / "no-command", status=2)
    assert "command not found" in missing.stderr
    assert sorted(tmp_path.rglob("*")) == files
    run(command(), "bundle", "-o", "b", "b")
    refused = run(command(), "bundle", "-o", "b", "b.old", status=2)
    assert "b.old would be removed, but is to be read" in refused.stderr
    assert (tmp_path / "b.old/perf.data").is_file()


# Runs a command in which a signal is pending and blocked, so that it has effect where the command unblocks it.
WITH_PENDING_SIGNAL = """
import os, signal, sys
number = int(sys.argv[1])
signal.pthread_sigmask(signal.SIG_BLOCK, [number])
os.kill(os.getpid(), number)
os.execv(sys.argv[2], sys.argv[2:])
"""


def test_a_signal_while_a_bundle_is_written_leaves_the_earlier_one(run, tmp_path):
    run(command(), "record", "-o", "p.data", "--", python(), PROGRAMS / "kernel.py", "once", timeout=RUN_TIMEOUT_S)
    run(command(), "bundle", "-o", "b", "p.data")

    def contents():
        return {path: path.read_bytes() if path.is_file() else None for path in tmp_path.rglob("*")}

    before = contents()
    for number in [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]:
        arguments = [int(number), command(), "bundle", "-o", "b", "p.data"]
        run(python(), "-c", WITH_PENDING_SIGNAL, *arguments, status=-number)
        assert contents() == before


def test_a_recording_has_another_name_than_the_files_of_a_bundle(run, tmp_path):
    run(command(), "record", "-o", "p.data", "--", python(), PROGRAMS / "kernel.py", "once", timeout=RUN_TIMEOUT_S)
    for name in ["root", "jitlisten-bundle", "2", "p.data.images.data"]:
        shutil.copy(tmp_path / "p.data", tmp_path / name)
    run(command(), "bundle", "-o", "b/", "root", "jitlisten-bundle", "2", "p.data", "p.data.images.data")
    recordings = {"root.2", "jitlisten-bundle.2", "2.2", "p.data", "p.data.images.data"}
    assert {path.name for path in (tmp_path / "b").iterdir()} == {
        *recordings,
        "p.data.images",
        "root",
        "jitlisten-bundle",
    }
    assert json.loads(run(command(), "lines", "--json", "-", "b").stdout)["recordings"] == 5


def test_the_folder_of_a_process_that_runs_has_its_number(run, start, tmp_path):
    program = start(python(), PROGRAMS / "kernel.py")
    run(command(), "record", "--bundle", "-d", "1", "-o", "prof-%h-%p", "-p", program.pid, timeout=RUN_TIMEOUT_S)
    (folder,) = tmp_path.glob("prof-*")
    assert folder.name == f"prof-{platform.node()}-{program.pid}"
    assert json.loads(run(command(), "lines", "--json", "-", folder).stdout)["compiled"] > 0


def test_a_process_is_recorded_with_the_sinks_that_are_asked_for(run, start, tmp_path):
    program = start(python(), PROGRAMS / "kernel.py")
    data = tmp_path / 'a "quoted" \u0301 name.data'
    run(command(), "record", "-p", program.pid, "-d", 1, "--no-python", "--sinks", "image", "-o", data)
    assert perf_map(program.pid) == "" and not program.has_ended()
    assert "__main__.burn" in run(command(), "lines", data).stdout


NAPPER = """
import time
def first():
    end = time.thread_time() + 0.3
    while time.thread_time() < end: pass
def last():
    end = time.thread_time() + 0.3
    while time.thread_time() < end: pass
first()
last()
print("ready", flush=True)
time.sleep(1000)
"""


def test_functions_before_a_long_nap_have_names(run, start, tmp_path):
    (tmp_path / "napper.py").write_text(NAPPER)
    program = start(command(), "record", "-o", "nap.data", "--", python(), "napper.py")
    images = tmp_path / "nap.data.images"
    wait_for(lambda: any(b"last" in path.read_bytes() for path in images.glob("python-*")), "the names")
    program.stop()
    output = run(command(), "lines", tmp_path / "nap.data").stdout
    assert "| first\n" in output and "| last\n" in output


def test_a_child_of_a_fork_leaves_the_recording_of_its_parent(run, tmp_path):
    (tmp_path / "forks.py").write_text(
        "import os, sys, jitlisten\n"
        "children = sys.argv[1] == 'children'\n"
        "with jitlisten.record('parent.data', children=children, lines=False):\n"
        "    child = os.fork()\n"
        "    if child == 0: sys.exit(3)\n"
        "    print(os.WEXITSTATUS(os.waitpid(child, 0)[1]))\n"
    )
    for mode in ("children", "none"):
        result = run(python(), "forks.py", mode)
        assert result.stdout == "3\n" and "Error" not in result.stderr, (mode, result.stderr)


def test_nothing_is_kept_of_code_after_the_duration(run, tmp_path):
    """The recording ends after its duration, before `stop_recording` is called."""
    (tmp_path / "later.py").write_text(
        "import contextlib, ctypes, gc, glob, time, jitlisten\n"
        "import llvmlite.binding as llvm\n"
        "from statistics import median\n"
        "for name in ('target', 'asmprinter'): getattr(llvm, 'initialize_native_' + name)()\n"
        "libc = ctypes.CDLL(None)\n"
        "class Heap(ctypes.Structure): _fields_ = [(name, ctypes.c_size_t) for name in 'abcdefghij']\n"
        "libc.mallinfo2.restype = Heap\n"
        "def compile():\n"
        "    machine = llvm.Target.from_default_triple().create_target_machine()\n"
        "    engine = llvm.create_mcjit_compiler(llvm.parse_assembly('define i32 @f() { ret i32 7 }'), machine)\n"
        "    engine.finalize_object(); assert engine.get_function_address('f'); engine.close()\n"
        "def grown():\n"
        "    gc.collect(); before = libc.mallinfo2().h\n"
        "    for _ in range(500): compile()\n"
        "    gc.collect(); return libc.mallinfo2().h - before\n"
        "jitlisten.enable(lines=False); stock = median(grown() for _ in range(5))\n"
        "jitlisten.start_recording('f.data', seconds=1)\n"
        "def is_written():\n"
        "    for path in glob.glob('/proc/self/task/*/comm'):\n"
        "        with contextlib.suppress(OSError):\n"
        "            if open(path).read() == 'jitlisten\\n': return True\n"
        "end = time.monotonic() + 1\n"
        "while time.monotonic() < end or is_written(): time.sleep(0.01)\n"
        "print(stock, median(grown() for _ in range(5))); print(jitlisten.stop_recording().failures)\n"
    )
    sizes, failures = run(python(), "later.py", timeout=RUN_TIMEOUT_S).stdout.splitlines()
    baseline, growth = map(float, sizes.split())
    # An event and its path need at least 200 bytes for each of 500 objects. Hash tables grow and shrink in steps.
    assert growth < baseline + 60_000 and failures == "0", sizes


def test_threads_that_come_where_as_many_have_gone_are_sampled(run, tmp_path):
    """Starts thread pools of the same size one after another. ``pthread_create`` is not interposed here, so threads are
    found in ``/proc``."""
    (tmp_path / "pools.py").write_text(
        "import ctypes, threading, time, jitlisten\n"
        "from jitlisten._record import Statistics, library\n"
        "def sampled():\n"
        "    counters = Statistics(size=ctypes.sizeof(Statistics))\n"
        "    library().jitlisten_get_record_statistics(ctypes.byref(counters))\n"
        "    return counters.threads\n"
        "def pool(expected, after=None):\n"
        "    end, patience = threading.Event(), time.monotonic() + 20\n"
        "    threads = [threading.Thread(target=end.wait) for _ in range(4)]\n"
        "    if after: after.set()\n"
        "    for thread in threads: thread.start()\n"
        "    while sampled() < expected and time.monotonic() < patience: time.sleep(0.01)\n"
        "    return end\n"
        "jitlisten.start_recording('f.data', lines=False, python=False)\n"
        "pool(9, after=pool(5)).set()\n"
        "print(jitlisten.stop_recording().threads)\n"
    )
    assert run(python(), "pools.py").stdout == "9\n"


def test_a_program_that_was_started_by_run_is_recorded_while_it_runs(run, start, tmp_path):
    program = start(command(), "run", "--", python(), PROGRAMS / "kernel.py")
    data = tmp_path / "f.data"
    run(command(), "record", "-p", program.pid, "-d", 1, "--no-python", "-o", data)
    assert not program.has_ended() and "__main__.burn" in run(command(), "lines", data).stdout


def test_what_has_gone_wrong_is_said(run, tmp_path):
    """Reports errors: a recording that exceeds the file size limit, and threads without timers."""
    (tmp_path / "work.py").write_text(
        "import resource, sys, threading, time\n"
        "RLIMIT_SIGPENDING = 11\n"
        "if sys.argv[1] == 'timers': resource.setrlimit(RLIMIT_SIGPENDING, (0, 0))\n"
        "def burn():\n"
        "    until = time.process_time() + 2\n"
        "    while time.process_time() < until: sum(range(1000))\n"
        "threads = [threading.Thread(target=burn) for _ in range(4)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
        "print('done')\n"
    )
    data, log = tmp_path / "f.data", tmp_path / "log"
    record = command(), "record", "--no-python", "--sinks", "unwind", "-r", 1000, "-o", data, "--", python(), "work.py"
    limited_record = "sh", "-c", 'ulimit -f 40; exec "$@"', "sh", *record, "file"
    limited_result = run(*limited_record)
    assert limited_result.stdout == "done\n" and "the recording stops: cannot write" in limited_result.stderr
    with_log = run(*limited_record, JITLISTEN_LOG=log)
    assert with_log.stderr == "" and "the recording stops: cannot write" in log.read_text()
    assert run(*record, "timers").stderr == ""
    assert "threads without a timer, which are not in the recording: 4" in run(command(), "lines", data).stdout


def test_a_runtime_of_a_sanitizer_stays_the_first_library(run, tmp_path):
    compiler = require_tool("gcc")
    runtime = run(compiler, "-print-file-name=libasan.so").stdout.strip()
    if "/" not in runtime:
        pytest.skip("no libasan")
    program = (
        "import threading\nt = threading.Thread(target=sum, args=(range(3000000),))\nt.start(); t.join(); print('ran')"
    )
    variables = {"LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0"}
    plain_result = run(python(), "-c", program, **variables)
    for args in ("record", "-o", tmp_path / "f.data"), ("record", "-s", "-o", tmp_path / "s.data"), ("run",):
        result = run(command(), *args, "--", python(), "-c", program, **variables)
        assert (result.stdout, result.stderr) == (plain_result.stdout, plain_result.stderr), args
    assert " · task-clock" in run(command(), "lines", tmp_path / "f.data").stdout


def test_a_wrapper_that_takes_the_library_away_is_named(run, tmp_path):
    program = (python(), "-c", "print('ran')")
    warning = "cannot be observed: put jitlisten after the wrapper"
    for wrapper in (
        ("env", "LD_PRELOAD=libm.so.6"),
        ("env", "-u", "LD_PRELOAD"),
        ("env", "-i"),
        ("sh", "-c", 'unset LD_PRELOAD; /bin/true; "$@"; exit $?', "sh"),
    ):
        for args in ("record",), ("run",), ("lines",):
            # A wrapper without a sample leaves an earlier recording alone, and then `lines` has nothing to show.
            for recording in tmp_path.glob("jitlisten.perf.data*"):
                shutil.rmtree(recording) if recording.is_dir() else recording.unlink()
            # A shell of no time has no recording to show.
            status = 2 if args == ("lines",) and wrapper[0] == "sh" else 0
            result = run(command(), *args, "--", *wrapper, *program, status=status)
            assert "ran\n" in result.stdout and result.stderr.count(warning) == 1, (wrapper, args, result.stderr)
    for wrapper in ("env",), ("env", "LD_BIND_NOW=1"), ("sh", "-c", '"$@"; exit $?', "sh"):
        for args in ("record",), ("run",):
            assert warning not in run(command(), *args, "--", *wrapper, *program).stderr
    # No warning about the program's own children is printed, even if these are native programs.
    starter = tmp_path / "starter.c"
    starter.write_text(
        "#include <stdlib.h>\n#include <unistd.h>\n#include <sys/wait.h>\n"
        'int main(void) { unsetenv("LD_PRELOAD"); if (!fork()) execl("/bin/true", "true", NULL);'
        ' if (!fork()) execv("/bin/true", (char *[]){"true", NULL}); while (wait(NULL) > 0); return 0; }\n'
    )
    run(require_tool("cc"), starter, "-o", tmp_path / "starter")
    assert warning not in run(command(), "record", "--", tmp_path / "starter").stderr
    starting_code = "import subprocess, sys; subprocess.run([sys.executable, '-c', ''], env={})"
    assert warning not in run(command(), "record", "--", python(), "-c", starting_code).stderr
