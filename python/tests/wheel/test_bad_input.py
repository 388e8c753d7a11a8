"""What cannot work: one sentence that says what is wrong and what to do, exit status 2, and nothing changed."""

import os
import pathlib
import platform
import signal
import struct
import subprocess

import pytest
from conftest import PROGRAMS, command, need, perf_map, python, wait_for
from spaces import package

KERNEL = PROGRAMS / "kernel.py"
UNUSED_PID = 5_000_003
#: Every verb with a process.
VERBS = [["attach"], ["attach", "--no-inject"], ["detach"], ["doctor"], ["record", "-o", "f.data", "-p"]]


def sentence(done):
    """The failure: one line, with lines for causes and advice below, and nothing for programs."""
    first, *others = done.stderr.splitlines()
    assert done.stdout == "" and first.startswith("jitlisten: "), done.stderr
    assert all(line.startswith(("  because: ", "  help: ")) for line in others), done.stderr
    return done.stderr


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_a_process_that_is_not_there(run, verb, tmp_path):
    assert f"no such process: {UNUSED_PID}" in sentence(run(command(), *verb, UNUSED_PID, status=2))
    ended = subprocess.Popen(["true"])
    wait_for(lambda: " Z " in pathlib.Path(f"/proc/{ended.pid}/stat").read_text(), "the process to end")
    assert "is a zombie" in sentence(run(command(), *verb, ended.pid, status=2))
    ended.wait()
    assert not (tmp_path / "f.data").exists()


def elf32():
    """A program of 32 bits that waits: `mov eax, 29 (pause); int 0x80; jmp` back."""
    code = b"\xb8\x1d\x00\x00\x00\xcd\x80\xeb\xf7"
    base, size = 0x10000, 52 + 32 + len(code)
    head = b"\x7fELF\x01\x01\x01" + bytes(9)
    header = struct.pack("<HHIIIIIHHHHHH", 2, 3, 1, base + 84, 52, 0, 0, 52, 32, 1, 0, 0, 0)
    segment = struct.pack("<IIIIIIII", 1, 0, base, base, size, size, 5, 0x1000)
    return head + header + segment + code


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_a_program_of_32_bits(run, verb, tmp_path):
    program = tmp_path / "small"
    program.write_bytes(elf32())
    program.chmod(0o755)
    assert "32-bit" in sentence(run(command(), "run", "--", program, status=2))
    try:
        process = subprocess.Popen([str(program)])
    except OSError as error:
        pytest.skip(f"this kernel does not run it: {error}")
    try:
        if verb == ["detach"]:
            # It cannot have the library, whatever it is.
            assert "32-bit" in sentence(run(command(), *verb, process.pid, status=2))
        else:
            assert "is a 32-bit program; jitlisten is for 64-bit programs" in sentence(
                run(command(), *verb, process.pid, status=2))
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("verb", [["attach"], ["record", "-o", "f.data", "-p"]], ids=" ".join)
def test_a_process_that_ends_meanwhile(start, environment, tmp_path, verb):
    """Its main thread sleeps, so the command waits until it is in Python again; then it ends."""
    (tmp_path / "asleep.py").write_text("import numba, time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    program = start(python(), "asleep.py")
    maps = pathlib.Path(f"/proc/{program.pid}/maps")
    before = maps.read_text()
    words = [str(word) for word in [command(), *verb, program.pid]]
    waiting = subprocess.Popen(
        words, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for(lambda: maps.read_text() != before, "the attempt")
        program.process.kill()
        program.process.wait()
        said, complained = waiting.communicate(timeout=30)
    finally:
        waiting.kill()
        waiting.wait()
    assert waiting.returncode == 2 and said == "" and "has ended" in complained


def test_a_main_thread_that_does_not_come_back(run, start, tmp_path):
    """A timeout is for good: when the thread is in Python again, nothing happens."""
    (tmp_path / "asleep.py").write_text(
        "import signal, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('awake', flush=True))\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(600)\n"
    )
    program = start(python(), "asleep.py")
    done = run(command(), "attach", "--timeout", 1, program.pid, status=2)
    assert "has not been in Python for 1 s" in sentence(done)
    for times in (1, 2):
        os.kill(program.pid, signal.SIGUSR1)
        wait_for(lambda: program.said().count("awake") == times, "the main thread")
    assert "libjitlisten" not in pathlib.Path(f"/proc/{program.pid}/maps").read_text()
    assert not program.has_ended()


@pytest.mark.parametrize("words", [["run", "--"], ["record", "--"], ["doctor", "--"], ["lines", "--"]], ids=" ".join)
def test_a_command_that_is_not_found(run, words):
    assert "command not found: no-such-command" in sentence(run(command(), *words, "no-such-command", status=2))
    done = run(command(), *words, "/etc/passwd", status=2)
    assert "permission denied (not an executable): /etc/passwd" in sentence(done)


@pytest.mark.parametrize("words", [["lines"], ["flamegraph"], ["export", "-f", "collapsed"]], ids=" ".join)
def test_a_name_that_is_nothing(run, words, tmp_path):
    done = run(command(), *words, "no-such-thing", status=2)
    assert "no-such-thing is neither a recording nor a command" in sentence(done)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "folder").mkdir()
    assert "there is no recording in folder" in sentence(run(command(), *words, "folder", status=2))


@pytest.mark.parametrize("words", [["lines"], ["record"], ["lines", "-o", "kept"]], ids=" ".join)
def test_a_file_that_is_no_recording_stays(run, words, tmp_path):
    files = [tmp_path / name for name in ("jitlisten.perf.data", "kept")]
    for file in files:
        file.write_text("precious")
    assert "exists and is not a recording\n  help: choose another -o" in sentence(
        run(command(), *words, "true", status=2)
    )
    assert [file.read_text() for file in files] == ["precious"] * 2
    if words[0] == "lines":
        assert "cannot be used with a recording" in sentence(run(command(), "lines", "-o", "f.data", "kept", status=2))


OTHERS = [
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
    for words, other in OTHERS:
        subcommand, *options, option = words
        once_more = [command(), subcommand, *options, option, out, "f.data"]
        out.write_text(other)
        assert "is another kind of file" in sentence(run(*once_more, status=2)), words
        assert out.read_text() == other
        out.unlink()
        for _ in range(2):
            run(*once_more)
        assert out.stat().st_size > 0


def test_a_pipe_is_no_recording(run, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for words in (["lines"], ["flamegraph"], ["compiles"], ["diff", "pipe"]):
        assert "not a regular file" in sentence(run(command(), *words, "pipe", status=2, timeout=60))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the program is machine code")
@pytest.mark.parametrize("words", [["lines"], ["flamegraph"], ["record", "--bundle"]], ids=" ".join)
def test_the_status_of_a_program_that_was_not_recorded(run, words, tmp_path):
    # exit(7), without a loader.
    code = b"\xbf\x07\0\0\0\xb8\x3c\0\0\0\x0f\x05"
    base = 0x400000
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, base + 120, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    size = 120 + len(code)
    program = tmp_path / "static"
    program.write_bytes(header + struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 0x1000) + code)
    program.chmod(0o755)
    assert "nothing was recorded" in run(command(), *words, "--", program, status=7).stderr


def test_a_name_that_ends_as_an_option_does(run, tmp_path):
    (tmp_path / "bench").write_text("precious")
    for name in ("bench,wall", "bench,hz=1,children", "bench,", "bench\n,wall", "\udcff,wall"):
        run(command(), "record", "-o", name, "--", python(), "-c", "sum(range(10**7))")
        assert (tmp_path / name).read_bytes().startswith(b"PERFILE2"), name
    assert (tmp_path / "bench").read_text() == "precious"


@pytest.mark.parametrize("words", [["lines"], ["record"], ["flamegraph"]], ids=" ".join)
def test_no_timers(run, words, tmp_path):
    limited = "import os, sys, resource; resource.setrlimit(11, (0, 0)); os.execv(sys.argv[1], sys.argv[1:])"
    done = run(python(), "-c", limited, command(), *words, "true", status=2)
    assert "cannot make a timer" in done.stderr and "ulimit -i" in done.stderr
    assert not (tmp_path / "jitlisten.perf.data").exists()


@pytest.mark.parametrize("words", [["run"], ["record", "-o", "f.data"], ["doctor"]], ids=" ".join)
def test_images_without_a_place(run, words, tmp_path):
    done = run(command(), *words, "--", "true", JITLISTEN_DIR="/nonexistent", status=2)
    assert "JITLISTEN_DIR, /nonexistent, is not a directory that can be written" in sentence(done)
    assert not (tmp_path / "f.data").exists()


def test_a_recording_without_a_place(run):
    assert "/nonexistent is not a directory" in sentence(
        run(command(), "record", "-o", "/nonexistent/f", "--", "true", status=2)
    )
    assert "is a directory\n  help: choose another -o" in sentence(
        run(command(), "record", "-o", "/", "--", "true", status=2)
    )


def test_a_perf_map_of_the_process_itself_is_left_alone(run, start, tmp_path):
    program = start(command(), "run", "--sinks", "perfmap", "--", python(), KERNEL)
    before = perf_map(program.pid)
    done = run(command(), "attach", "--no-inject", program.pid, status=2)
    assert "exists, written by the process itself" in sentence(done)
    assert perf_map(program.pid) == before != ""


def other_version(tmp_path):
    """The library, which says that it is another version."""
    ask = "import jitlisten; print(jitlisten.__version__)"
    version = subprocess.check_output([str(python()), "-c", ask], text=True, cwd="/").strip().encode()
    content = (package() / "libjitlisten.so").read_bytes()
    assert content.count(version + b"\0") >= 1
    other = tmp_path / "libjitlisten.so"
    other.write_bytes(content.replace(version + b"\0", b"9" + version[1:] + b"\0"))
    return other, "9" + version[1:].decode()


def test_another_version_is_in_the_process_already(run, start, tmp_path):
    other, version = other_version(tmp_path)
    program = start(python(), KERNEL, LD_PRELOAD=other, JITLISTEN="unwind")
    done = run(command(), "attach", program.pid, "--sinks", "image,perfmap", status=None)
    assert f"has jitlisten {version} already, from {other}" in done.stderr
    assert "/object-" not in pathlib.Path(f"/proc/{program.pid}/maps").read_text()
    assert version in sentence(run(command(), "detach", program.pid, status=2))
    done = run(command(), "run", "--", "true", LD_PRELOAD=other, status=2)
    assert "LD_PRELOAD has another jitlisten already" in sentence(done)


def test_another_libc(run, tmp_path):
    """The head of a program that was linked with musl: its loader is named in it."""
    other = tmp_path / "other"
    other.write_bytes(b"\x7fELF\x02" + bytes(64) + b"/lib/ld-musl-x86_64.so.1\0")
    other.chmod(0o755)
    assert "is built for musl; jitlisten is for programs with glibc" in sentence(
        run(command(), "run", "--", other, status=2)
    )


def test_a_process_that_is_traced_already(run, start, tmp_path):
    """By a debugger, which the kernel lets no second tracer join."""
    gdb = need("gdb")
    program = start(python(), KERNEL)
    script = tmp_path / "attach.gdb"
    script.write_text(f"shell {command()} record -o f.data -p {program.pid}; echo status $?\n")
    done = run(
        gdb, "-nx", "-batch", "-iex", "set debuginfod enabled off", "-iex", "set auto-solib-add off", "-p", program.pid,
        "-x", script,
    )
    assert f"process {program.pid} is traced by process" in done.stderr and "status 2" in done.stdout


def test_no_process_of_a_user(run):
    """A thread of the kernel, an invalid number, and this command's own user interface."""
    kernel = next(
        (pid for pid in ["2"] if not os.path.exists(f"/proc/{pid}/exe") and os.path.exists(f"/proc/{pid}")), None
    )
    if kernel:
        done = run(command(), "attach", kernel, status=2)
        assert "is a kernel thread" in done.stderr or "permission denied for process" in done.stderr
    assert run(command(), "attach", "nonsense", status=2).stdout == ""


def test_coverage_and_profiles_refuse_each_other(run, tmp_path):
    other = "`jitlisten coverage` runs instrumented code"
    for verb in (["run"], ["lines"], ["record", "-o", tmp_path / "f.data"]):
        done = run(command(), "coverage", "--", command(), *verb, "--", python(), "-c", "print('ran')", status=2)
        assert other in done.stderr and "ran" not in done.stdout, (verb, done.stderr)
        done = run(command(), *verb, "--", command(), "coverage", "--", python(), "-c", "print('ran')", status=2)
        assert "without `jitlisten run`, `record` and `lines`" in done.stderr and "ran" not in done.stdout, (
            verb,
            done.stderr,
        )
