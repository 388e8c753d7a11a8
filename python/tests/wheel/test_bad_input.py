"""Invalid input: the command prints one sentence with the cause and the remedy, exits with status 2 and changes
nothing."""

import os
import pathlib
import platform
import signal
import struct
import subprocess

import pytest
from conftest import PROGRAMS, command, perf_map, python, require_tool, wait_for
from spaces import package_directory

KERNEL = PROGRAMS / "kernel.py"
UNUSED_PID = 5_000_003
#: Every subcommand that takes a process, with its options.
PROCESS_SUBCOMMANDS = [["attach"], ["attach", "--no-inject"], ["detach"], ["doctor"], ["record", "-o", "f.data", "-p"]]


def error_message(result):
    """Returns the error output. Asserts that it is one line, followed only by causes and advice, and that stdout is
    empty."""
    headline, *detail_lines = result.stderr.splitlines()
    assert result.stdout == "" and headline.startswith("jitlisten: "), result.stderr
    assert all(line.startswith(("  because: ", "  help: ")) for line in detail_lines), result.stderr
    return result.stderr


@pytest.mark.parametrize("subcommand", PROCESS_SUBCOMMANDS, ids=" ".join)
def test_a_process_that_is_not_there(run, subcommand, tmp_path):
    assert f"no such process: {UNUSED_PID}" in error_message(run(command(), *subcommand, UNUSED_PID, status=2))
    zombie = subprocess.Popen(["true"])
    wait_for(lambda: " Z " in pathlib.Path(f"/proc/{zombie.pid}/stat").read_text(), "the process to end")
    assert "is a zombie" in error_message(run(command(), *subcommand, zombie.pid, status=2))
    zombie.wait()
    assert not (tmp_path / "f.data").exists()


def build_elf32_program():
    """A 32-bit program that waits in a loop of `mov eax, 29 (pause); int 0x80; jmp`."""
    code = b"\xb8\x1d\x00\x00\x00\xcd\x80\xeb\xf7"
    load_address, size = 0x10000, 52 + 32 + len(code)
    ident = b"\x7fELF\x01\x01\x01" + bytes(9)
    header = struct.pack("<HHIIIIIHHHHHH", 2, 3, 1, load_address + 84, 52, 0, 0, 52, 32, 1, 0, 0, 0)
    segment = struct.pack("<IIIIIIII", 1, 0, load_address, load_address, size, size, 5, 0x1000)
    return ident + header + segment + code


@pytest.mark.parametrize("subcommand", PROCESS_SUBCOMMANDS, ids=" ".join)
def test_a_program_of_32_bits(run, subcommand, tmp_path):
    program = tmp_path / "small"
    program.write_bytes(build_elf32_program())
    program.chmod(0o755)
    assert "32-bit" in error_message(run(command(), "run", "--", program, status=2))
    try:
        process = subprocess.Popen([str(program)])
    except OSError as error:
        pytest.skip(f"this kernel does not run it: {error}")
    try:
        if subcommand == ["detach"]:
            # A 32-bit process cannot contain the 64-bit library.
            assert "32-bit" in error_message(run(command(), *subcommand, process.pid, status=2))
        else:
            assert "is a 32-bit program; jitlisten is for 64-bit programs" in error_message(
                run(command(), *subcommand, process.pid, status=2)
            )
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("subcommand", [["attach"], ["record", "-o", "f.data", "-p"]], ids=" ".join)
def test_a_process_that_ends_meanwhile(start, environment, tmp_path, subcommand):
    """The command waits for the sleeping main thread to return to Python, and the process is killed in the meantime."""
    (tmp_path / "asleep.py").write_text("import numba, time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    program = start(python(), "asleep.py")
    maps = pathlib.Path(f"/proc/{program.pid}/maps")
    maps_before = maps.read_text()
    args = [str(word) for word in [command(), *subcommand, program.pid]]
    attach = subprocess.Popen(
        args, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for(lambda: maps.read_text() != maps_before, "the attempt")
        program.process.kill()
        program.process.wait()
        output, errors = attach.communicate(timeout=30)
    finally:
        attach.kill()
        attach.wait()
    assert attach.returncode == 2 and output == "" and "has ended" in errors


@pytest.mark.parametrize("wait", ["ctypes.PyDLL(None).sleep(600)", "time.sleep(600)"], ids=["GIL", "threading"])
def test_a_main_thread_that_does_not_come_back(run, start, tmp_path, wait):
    """A timed-out request is cancelled, so nothing happens when the thread returns to Python. Another thread cannot run
    the request without the GIL, and must not if it would be the first to import `threading`."""
    (tmp_path / "asleep.py").write_text(
        "import ctypes, signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('awake', 'jitlisten' in sys.modules, flush=True))\n"
        "print('ready', flush=True)\n"
        f"while True: {wait}\n"
    )
    program = start(python(), "asleep.py")
    result = run(command(), "attach", "--timeout", 1, program.pid, status=2)
    assert "has not been in Python for 1 s" in error_message(result)
    for wakeups in (1, 2):
        os.kill(program.pid, signal.SIGUSR1)
        wait_for(lambda: program.output_text().count("awake False") == wakeups, "the main thread")
    assert "/object-" not in pathlib.Path(f"/proc/{program.pid}/maps").read_text()
    assert not program.has_ended()


@pytest.mark.parametrize("args", [["run", "--"], ["record", "--"], ["doctor", "--"], ["lines", "--"]], ids=" ".join)
def test_a_command_that_is_not_found(run, args):
    assert "command not found: no-such-command" in error_message(run(command(), *args, "no-such-command", status=2))
    result = run(command(), *args, "/etc/passwd", status=2)
    assert "permission denied (not an executable): /etc/passwd" in error_message(result)


@pytest.mark.parametrize("args", [["lines"], ["flamegraph"], ["export", "-f", "collapsed"]], ids=" ".join)
def test_a_name_that_is_nothing(run, args, tmp_path):
    result = run(command(), *args, "no-such-thing", status=2)
    assert "there is no file or command no-such-thing" in error_message(result)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "folder").mkdir()
    assert "there is no recording in folder" in error_message(run(command(), *args, "folder", status=2))


@pytest.mark.parametrize("args", [["lines"], ["record"], ["lines", "-o", "kept"]], ids=" ".join)
def test_a_file_that_is_no_recording_stays(run, args, tmp_path):
    files = [tmp_path / name for name in ("jitlisten.perf.data", "kept")]
    for file in files:
        file.write_text("precious")
    assert "exists and is not a recording\n  help: choose another -o" in error_message(
        run(command(), *args, "true", status=2)
    )
    assert [file.read_text() for file in files] == ["precious"] * 2
    if args[0] == "lines":
        assert "cannot be used with a recording" in error_message(
            run(command(), "lines", "-o", "f.data", "kept", status=2)
        )


FOREIGN_FILES = [
    (["export", "-f", "collapsed", "-o"], "see also chapter 12\nprecious\n"),
    (["flamegraph", "-o"], '<?xml version="1.0" standalone="no"?>\n<project>precious</project>\n'),
    (["export", "-f", "speedscope", "-o"], '{"$schema":"https://json.schemastore.org/tsconfig"}'),
    (["export", "-f", "firefox", "-o"], '{"counters":[],"libs":[],"meta":{}}'),
    (["export", "-f", "callgrind", "-o"], "# callgrind format\nversion: 1\ncreator: callgrind-3.19.0\n"),
    (["lines", "--html"], '<!DOCTYPE html>\n<html lang="en">\n<head>\n<title>precious</title>\n'),
    (["lines", "--json"], '{\n  "approximate": 0\n}\n'),
    (["compiles", "--json"], '[\n  {\n    "caller": null\n  }\n]\n'),
]


def test_only_outputs_of_jitlisten_are_replaced(run, tmp_path):
    run(command(), "record", "-o", "f.data", "--", python(), KERNEL, "once")
    out = tmp_path / "out"
    for args, foreign_content in FOREIGN_FILES:
        subcommand, *options, option = args
        export_args = [command(), subcommand, *options, option, out, "f.data"]
        out.write_text(foreign_content)
        assert "is another kind of file" in error_message(run(*export_args, status=2)), args
        assert out.read_text() == foreign_content
        out.unlink()
        for _ in range(2):
            run(*export_args)
        assert out.stat().st_size > 0


def test_a_pipe_is_no_recording(run, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for args in (["lines"], ["flamegraph"], ["compiles"], ["diff", "pipe"]):
        assert "not a regular file" in error_message(run(command(), *args, "pipe", status=2, timeout=60))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the program is machine code")
@pytest.mark.parametrize("args", [["lines"], ["flamegraph"], ["record", "--bundle"]], ids=" ".join)
def test_the_status_of_a_program_that_was_not_recorded(run, args, tmp_path):
    # A static program that calls exit(7). Without a loader, nothing can be preloaded into it.
    code = b"\xbf\x07\0\0\0\xb8\x3c\0\0\0\x0f\x05"
    load_address = 0x400000
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, load_address + 120, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    size = 120 + len(code)
    program = tmp_path / "static"
    program.write_bytes(
        header + struct.pack("<IIQQQQQQ", 1, 5, 0, load_address, load_address, size, size, 0x1000) + code
    )
    program.chmod(0o755)
    assert "nothing was recorded" in run(command(), *args, "--", program, status=7).stderr


def test_a_name_that_ends_as_an_option_does(run, tmp_path):
    (tmp_path / "bench").write_text("precious")
    for name in ("bench,wall", "bench,hz=1,children", "bench,", "bench\n,wall", "\udcff,wall"):
        run(command(), "record", "-o", name, "--", python(), "-c", "sum(range(10**7))")
        assert (tmp_path / name).read_bytes().startswith(b"PERFILE2"), name
    assert (tmp_path / "bench").read_text() == "precious"


@pytest.mark.parametrize("args", [["lines"], ["record"], ["flamegraph"]], ids=" ".join)
def test_no_timers(run, args, tmp_path):
    run_without_timers = "import os, sys, resource; resource.setrlimit(11, (0, 0)); os.execv(sys.argv[1], sys.argv[1:])"
    result = run(python(), "-c", run_without_timers, command(), *args, "true", status=2)
    assert "cannot make a timer" in result.stderr and "ulimit -i" in result.stderr
    assert not (tmp_path / "jitlisten.perf.data").exists()


@pytest.mark.parametrize("args", [["run"], ["record", "-o", "f.data"], ["doctor"]], ids=" ".join)
def test_images_without_a_place(run, args, tmp_path):
    result = run(command(), *args, "--", "true", JITLISTEN_DIR="/nonexistent", status=2)
    assert "JITLISTEN_DIR, /nonexistent, is not a directory that can be written" in error_message(result)
    assert not (tmp_path / "f.data").exists()


def test_a_recording_without_a_place(run):
    assert "/nonexistent is not a directory" in error_message(
        run(command(), "record", "-o", "/nonexistent/f", "--", "true", status=2)
    )
    assert "is a directory\n  help: choose another -o" in error_message(
        run(command(), "record", "-o", "/", "--", "true", status=2)
    )


def test_a_perf_map_of_the_process_itself_is_left_alone(run, start, tmp_path):
    program = start(command(), "run", "--sinks", "perfmap", "--", python(), KERNEL)
    map_before = perf_map(program.pid)
    result = run(command(), "attach", "--no-inject", program.pid, status=2)
    assert "exists, written by the process itself" in error_message(result)
    assert perf_map(program.pid) == map_before != ""


def copy_with_other_version(tmp_path):
    """Copies the library and changes its version; returns the copy and that version."""
    code = "import jitlisten; print(jitlisten.__version__)"
    version = subprocess.check_output([str(python()), "-c", code], text=True, cwd="/").strip().encode()
    content = (package_directory() / "libjitlisten.so").read_bytes()
    assert content.count(version + b"\0") >= 1
    library = tmp_path / "libjitlisten.so"
    library.write_bytes(content.replace(version + b"\0", b"9" + version[1:] + b"\0"))
    return library, "9" + version[1:].decode()


def test_another_version_is_in_the_process_already(run, start, tmp_path):
    library, version = copy_with_other_version(tmp_path)
    program = start(python(), KERNEL, LD_PRELOAD=library, JITLISTEN="unwind")
    result = run(command(), "attach", program.pid, "--sinks", "image,perfmap", status=None)
    assert f"has jitlisten {version} already, from {library}" in result.stderr
    assert "/object-" not in pathlib.Path(f"/proc/{program.pid}/maps").read_text()
    assert version in error_message(run(command(), "detach", program.pid, status=2))
    result = run(command(), "run", "--", "true", LD_PRELOAD=library, status=2)
    assert "LD_PRELOAD has another jitlisten already" in error_message(result)


def test_another_libc(run, tmp_path):
    """A file that names musl's loader, like programs linked with musl."""
    musl_program = tmp_path / "other"
    musl_program.write_bytes(b"\x7fELF\x02" + bytes(64) + b"/lib/ld-musl-x86_64.so.1\0")
    musl_program.chmod(0o755)
    assert "is built for musl; jitlisten is for programs with glibc" in error_message(
        run(command(), "run", "--", musl_program, status=2)
    )


def test_a_process_that_is_traced_already(run, start, tmp_path):
    """Only one process at a time can trace another; here, gdb already does."""
    gdb = require_tool("gdb")
    program = start(python(), KERNEL)
    script = tmp_path / "attach.gdb"
    script.write_text(f"shell {command()} record -o f.data -p {program.pid}; echo status $?\n")
    result = run(
        gdb,
        "-nx",
        "-batch",
        "-iex",
        "set debuginfod enabled off",
        "-iex",
        "set auto-solib-add off",
        "-p",
        program.pid,
        "-x",
        script,
    )
    assert f"process {program.pid} is traced by process" in result.stderr and "status 2" in result.stdout


def test_no_process_of_a_user(run):
    """A kernel thread, and a malformed process id."""
    kernel_thread = next(
        (pid for pid in ["2"] if not os.path.exists(f"/proc/{pid}/exe") and os.path.exists(f"/proc/{pid}")), None
    )
    if kernel_thread:
        result = run(command(), "attach", kernel_thread, status=2)
        assert "is a kernel thread" in result.stderr or "permission denied for process" in result.stderr
    assert run(command(), "attach", "nonsense", status=2).stdout == ""


def test_coverage_and_profiles_refuse_each_other(run, tmp_path):
    conflict = "`jitlisten coverage` runs instrumented code"
    for subcommand in (["run"], ["lines"], ["record", "-o", tmp_path / "f.data"]):
        result = run(
            command(), "coverage", "--", command(), *subcommand, "--", python(), "-c", "print('ran')", status=2
        )
        assert conflict in result.stderr and "ran" not in result.stdout, (subcommand, result.stderr)
        result = run(
            command(), *subcommand, "--", command(), "coverage", "--", python(), "-c", "print('ran')", status=2
        )
        assert "without `jitlisten run`, `record` and `lines`" in result.stderr and "ran" not in result.stdout, (
            subcommand,
            result.stderr,
        )
