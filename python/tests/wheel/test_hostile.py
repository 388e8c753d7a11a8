"""Runs the command as root and as another user, against processes that lie, plant links, hang, stop, exec and exit.

Add each new subcommand that takes a process to SUBCOMMANDS, and each new trick to TRICKS. Regardless of the trick, the
command must end, no file of root's may change, no code of the process may run as root, and the process must continue.
"""

import os
import pathlib
import pty
import select
import shutil
import signal
import subprocess
import tempfile
import time

import pytest
from conftest import PROGRAMS, command, python, require_tool, wait_for
from spaces import USER, User

#: Timeout of a subcommand in seconds; `record -p` waits 20 s for an unresponsive process, twice.
SUBCOMMAND_TIMEOUT_S = 90

#: Arguments of `jitlisten`; PID is replaced by the process, OUT by a file of the caller's.
SUBCOMMANDS = {
    "attach": ["attach", "--timeout", "2", "PID"],
    "read": ["attach", "--no-inject", "PID"],
    "detach": ["detach", "--timeout", "2", "PID"],
    "record": ["record", "-d", "1", "-o", "OUT", "-p", "PID"],
    "bundle": ["record", "--bundle", "-d", "1", "-o", "OUT", "-p", "PID"],
    "top": ["top", "-p", "PID"],
    "doctor": ["doctor", "PID"],
    "clean": ["clean", "--all", "PID"],
}

#: Each behaviour of the target process: the program that shows it (hostile.c as `python3.14-llvm` or as a fake
#: libjitlisten, or hostile.py), its arguments, and whether the process goes on running after the attempt.
TRICKS = {
    "looks like Python": ("liar", ["accepts"], True),
    "never returns": ("liar", ["hangs"], True),
    "crashes in the call": ("liar", ["crashes"], True),
    "stops itself in the call": ("liar", ["raises"], False),
    "ends in the call": ("liar", ["exits"], False),
    "ignores SIGSEGV": ("liar", ["ignores"], True),
    "an endless list": ("liar", ["endless"], True),
    "giant objects": ("liar", ["giant"], True),
    "wild pointers": ("liar", ["wild"], True),
    "a link as its map": ("hostile", ["link", "VICTIM"], True),
    "a pipe as its map": ("hostile", ["pipe"], True),
    "a directory as its map": ("hostile", ["directory"], True),
    "a device as its map": ("hostile", ["device"], True),
    "64 GB of nothing as its map": ("hostile", ["sparse"], True),
    "facts without an end": ("library", ["countless"], True),
    "facts of a device": ("library", ["facts"], True),
    "swaps its map": ("hostile", ["swaps", "VICTIM"], True),
    "swaps the files of top": ("hostile", ["scratch"], True),
    "execs": ("hostile", ["execs"], False),
    "forks": ("hostile", ["forks"], False),
    "is stopped": ("hostile", ["stops"], False),
    **{f"ends after {time} s": ("hostile", ["ends", time], False) for time in ("0.02", "0.1", "0.5")},
}


@pytest.fixture(scope="module")
def user():
    """An ordinary user, a file that only root may change, the hostile program, and the mark file that the program
    writes."""
    user = User()
    user.mark = user.home / "mark"
    user.liar = user.home / "python3.14-llvm"
    compile_command = [
        require_tool("cc"),
        "-rdynamic",
        "-O1",
        "-w",
        f'-DMARK="{user.mark}"',
        "-o",
        user.liar,
        PROGRAMS / "hostile.c",
    ]
    subprocess.run([str(arg) for arg in compile_command], check=True)
    user.library = user.home / "libjitlisten.so"
    shutil.copy(user.liar, user.library)
    user.precious = user.home.parent / f"jitlisten-precious-{os.getpid()}"
    user.precious.write_text("precious")
    user.precious.chmod(0o600)
    yield user
    user.precious.unlink()
    user.close()


class Target:
    def __init__(self, user, program, args):
        args = [str(user.precious) if arg == "VICTIM" else arg for arg in args]
        compiled_programs = {"liar": user.liar, "library": user.library}
        program_command = (
            [compiled_programs[program], "serve"]
            if program in compiled_programs
            else [python(), user.program("hostile.py")]
        )
        target_command = [*program_command, *args]
        self.output_text = user.home / "said"
        with open(self.output_text, "w") as output:
            self.process = subprocess.Popen(
                [str(arg) for arg in [*user.command_prefix, *target_command]],
                stdout=output,
                stderr=output,
                env={**os.environ, **user.environment},
            )
        self.pid = self.process.pid
        wait_for(lambda: "ready" in self.output_text.read_text() or self.process.poll() is not None, "the target")

    def assert_continues(self):
        alive_count = self.output_text.read_text().count("alive")
        wait_for(lambda: self.output_text.read_text().count("alive") > alive_count, "the target to go on")

    def close(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        map_file = pathlib.Path(f"/tmp/perf-{self.pid}.map")
        if map_file.is_dir() and not map_file.is_symlink():
            map_file.rmdir()
        else:
            map_file.unlink(missing_ok=True)


def run_on_terminal(args, environment, directory, watch_s=0):
    """Runs a command on a terminal; presses `q` after ``watch_s`` seconds."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(args, stdin=terminal, stdout=terminal, stderr=terminal, env=environment, cwd=directory)
    os.close(terminal)
    start_time = time.monotonic()
    deadline = start_time + SUBCOMMAND_TIMEOUT_S
    while process.poll() is None:
        assert time.monotonic() < deadline, args
        if select.select([controller], [], [], 0.2)[0]:
            try:
                os.read(controller, 65536)
                if time.monotonic() > start_time + watch_s:
                    os.write(controller, b"q")
            except OSError:
                break
    process.wait(SUBCOMMAND_TIMEOUT_S)
    os.close(controller)


def file_state(path):
    status = os.lstat(path)
    return path.read_text(), status.st_ino, status.st_mode, status.st_uid, status.st_nlink, status.st_mtime_ns


@pytest.mark.parametrize("caller", ["root", "user"])
@pytest.mark.parametrize("subcommand", SUBCOMMANDS)
@pytest.mark.parametrize("trick", TRICKS)
def test_it_ends_and_changes_nothing_of_root_s(user, environment, tmp_path, trick, subcommand, caller):
    program, args, continues = TRICKS[trick]
    user.mark.unlink(missing_ok=True)
    state_before = file_state(user.precious)
    target = Target(user, program, args)
    out = (user.home if caller == "user" else tmp_path) / f"{subcommand}.out"
    try:
        args = [{"PID": str(target.pid), "OUT": str(out)}.get(arg, arg) for arg in SUBCOMMANDS[subcommand]]
        caller_prefix = user.command_prefix if caller == "user" else []
        args = [str(arg) for arg in [*caller_prefix, command(), *args]]
        merged_environment = {**environment, **(user.environment if caller == "user" else {}), "TERM": "xterm"}
        if subcommand == "top":
            run_on_terminal(args, merged_environment, tmp_path, watch_s=3 if "top" in trick else 0)
        else:
            subprocess.run(
                args,
                env=merged_environment,
                cwd=tmp_path,
                capture_output=True,
                timeout=SUBCOMMAND_TIMEOUT_S,
                stdin=subprocess.DEVNULL,
            )
        assert file_state(user.precious) == state_before
        mark_text = user.mark.read_text() if user.mark.exists() else ""
        assert "executed" not in mark_text and "by user 0" not in mark_text, mark_text
        if continues:
            target.assert_continues()
    finally:
        target.close()
        shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)


def test_no_signal_is_lost(user, environment):
    """Real-time signals are queued and counted while attach interrupts the process repeatedly."""
    count = 3000
    target = Target(user, "liar", ["counts"])

    def read_signal_masks():
        status = pathlib.Path(f"/proc/{target.pid}/status").read_text().splitlines()
        return [line for line in status if line.startswith(("SigBlk", "SigIgn", "SigCgt"))]

    try:
        masks_before = read_signal_masks()
        attach_loop = 'for i in 1 2 3 4 5 6 7 8 9 10; do "$0" attach "$1"; done'
        args = ["sh", "-c", attach_loop, str(command()), str(target.pid)]
        attach_process = subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        for _ in range(count):
            os.kill(target.pid, signal.SIGRTMIN)
            time.sleep(0.0002)
        attach_process.wait(SUBCOMMAND_TIMEOUT_S)
        wait_for(lambda: f"alive {count}\n" in target.output_text.read_text(), "all signals")
        assert read_signal_masks() == masks_before and user.mark.read_text().count("called") >= 10
    finally:
        target.close()


def test_a_stop_that_comes_during_an_attempt_is_a_stop(user, run):
    target = Target(user, "liar", ["raises"])
    try:
        run(command(), "attach", "--timeout", "2", target.pid, status=None)
        wait_for(lambda: " T " in pathlib.Path(f"/proc/{target.pid}/stat").read_text(), "the stop")
        os.kill(target.pid, signal.SIGCONT)
        target.assert_continues()
    finally:
        target.close()


def test_a_program_in_a_chroot_stays_there(user, environment, tmp_path):
    """Outside the chroot, the interpreter's path leads to another file. Neither file may be executed."""
    user.mark.unlink(missing_ok=True)
    root = tmp_path / "root"
    for library in ["/lib", "/lib64", "/usr/lib", "/proc", "/tmp"]:
        (root / library[1:]).mkdir(parents=True, exist_ok=True)
    shutil.copy(user.liar, root / "python3.14-llvm")
    shell_commands = [
        f"mount --rbind {directory} {root}{directory}"
        for directory in ("/lib", "/lib64", "/usr/lib")
        if os.path.isdir(directory)
    ]
    shell_commands += [
        f"mount -t proc proc {root}/proc",
        f"ln -s {user.precious} {root}/tmp/perf-1.map",
        f"exec chroot {root} /python3.14-llvm serve nothing",
    ]
    args = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", "\n".join(shell_commands)]
    with open(tmp_path / "said", "w") as output:
        unshare = subprocess.Popen(args, stdout=output, stderr=output)
    try:
        output_path = tmp_path / "said"
        wait_for(lambda: "alive" in output_path.read_text() or unshare.poll() is not None, "the program")
        assert unshare.poll() is None, output_path.read_text()
        pid = pathlib.Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text().split()[0]
        state_before = file_state(user.precious)
        for args in SUBCOMMANDS.values():
            args = [{"PID": pid, "OUT": str(tmp_path / "out")}.get(arg, arg) for arg in args if arg != "top"]
            subprocess.run(
                [str(command()), *args],
                env=environment,
                cwd=tmp_path,
                capture_output=True,
                timeout=SUBCOMMAND_TIMEOUT_S,
            )
        assert file_state(user.precious) == state_before and not user.mark.exists()
    finally:
        unshare.kill()
        unshare.wait()


#: Files that another user plants in a shared directory before root records there. FILE is the recording, VICTIM a
#: nonexistent file of root's.
PLANTED = {
    "its directory": "os.umask(0); os.mkdir(FILE + '.images', 0o777)",
    "a link as its directory": "os.symlink('/', FILE + '.images')",
    "a link as the recording": "os.symlink(VICTIM, FILE)",
    "a pipe as the recording": "os.umask(0); os.mkfifo(FILE, 0o666)",
}


def _state(directory):
    """Returns all but the access times, which change when a link is looked at."""
    states = {path: path.lstat() for path in directory.rglob("*")}
    names = [name for name in dir(os.stat_result) if name.startswith("st_") and not name.startswith("st_atime")]
    return {path: {name: getattr(state, name) for name in names} for path, state in states.items()}


@pytest.mark.parametrize("subcommand", ["record", "lines"])
@pytest.mark.parametrize("planted", PLANTED)
def test_what_another_user_planted_is_not_used(user, environment, tmp_path, planted, subcommand):
    shared_directory, victim = pathlib.Path(tempfile.mkdtemp(prefix="jitlisten-shared-")), tmp_path / "victim"
    try:
        shared_directory.chmod(0o1777)
        recording = shared_directory / "jitlisten.perf.data"
        plant_code = f"import os; FILE, VICTIM = {str(recording)!r}, {str(victim)!r}; {PLANTED[planted]}"
        subprocess.run([str(arg) for arg in [*user.command_prefix, python(), "-c", plant_code]], check=True)
        state_before = _state(shared_directory)
        args = [str(command()), subcommand, "-o", str(recording), "--", str(python()), "-c", "sum(range(10**7))"]
        result = subprocess.run(
            args,
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=SUBCOMMAND_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
        assert result.returncode == 2 and "help: choose another -o" in result.stderr, result.stderr
        assert _state(shared_directory) == state_before and not victim.exists()
    finally:
        shutil.rmtree(shared_directory)


def test_a_recording_in_a_shared_directory(user, environment, tmp_path):
    """No other user can read or write a recording in a directory like /tmp."""
    shared_directory = pathlib.Path(tempfile.mkdtemp(prefix="jitlisten-shared-"))
    try:
        shared_directory.chmod(0o1777)
        args = [
            str(command()),
            "record",
            "-o",
            str(shared_directory / "f.data"),
            "--",
            str(python()),
            "-c",
            "sum(range(10**8))",
        ]
        subprocess.run(args, env=environment, cwd=tmp_path, check=True, timeout=SUBCOMMAND_TIMEOUT_S)
        assert list((shared_directory / "f.data.images").iterdir())
        for access_command in (
            "ls f.data.images",
            "cat f.data",
            "touch f.data.images/x",
            "mv f.data.images x",
            "rm f.data",
        ):
            user_command = [*user.command_prefix, "sh", "-c", f"cd {shared_directory} && {access_command}"]
            assert subprocess.run([str(arg) for arg in user_command], capture_output=True).returncode != 0, (
                access_command
            )
    finally:
        shutil.rmtree(shared_directory)


assert USER != 0


def readable_by_others(folder):
    """Files that other users can read, and directories that other users can list."""
    paths = [folder, *folder.rglob("*")]
    return [f"{path} {path.lstat().st_mode & 0o777:o}" for path in paths if path.lstat().st_mode & 0o077]


@pytest.mark.parametrize("umask", [0o022, 0o000, 0o077])
def test_what_has_the_text_of_a_private_source_is_private(run, environment, tmp_path, umask):
    tmp_path.chmod(0o755)
    private_directory = tmp_path / "private"
    private_directory.mkdir(mode=0o700)
    secret_source = private_directory / "secret.py"
    secret_source.write_text(
        "def secret_sum(n):\n    return sum(i % 7 for i in range(n))\nfor _ in range(30): secret_sum(200_000)\n"
    )
    secret_source.chmod(0o600)
    # An existing directory becomes the bundle and gets the bundle's permissions.
    (tmp_path / "b").mkdir(mode=0o755)
    old_umask = os.umask(umask)
    try:
        run(command(), "record", "--bundle", "-o", "b", "--", python(), secret_source)
        bundle = tmp_path / "b"
        assert (bundle / f"root{secret_source}").is_file() and readable_by_others(bundle / "root") == []
        modes = {name: (bundle / name).stat().st_mode & 0o777 for name in (".", "jitlisten-bundle", "perf.data")}
        assert modes == {".": 0o700, "jitlisten-bundle": 0o600, "perf.data": 0o600}
        # If the tests run as root, another user tries to read the file.
        if os.geteuid() == 0:
            nobody_prefix = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
            result = run(*nobody_prefix, "head", "-1", f"{bundle}/root{secret_source}", status=None)
            assert "Permission denied" in result.stderr, result
        outputs = {
            "page.html": ["lines", "--html"],
            "lines.json": ["lines", "--json"],
            "flames.svg": ["flamegraph", "-o"],
            "a.speedscope.json": ["export", "-o"],
            "a.folded": ["export", "-o"],
            "callgrind.out": ["export", "-o"],
            "firefox.json": ["export", "-o"],
            "compiles.json": ["compiles", "--json"],
        }
        for name, (subcommand, option) in outputs.items():
            run(command(), subcommand, option, name, "b")
            assert (tmp_path / name).stat().st_mode & 0o777 == 0o600, name
        # When a file is replaced, permissions that the user has relaxed are kept.
        (tmp_path / "page.html").chmod(0o644)
        run(command(), "lines", "--html", "page.html", "b")
        assert (tmp_path / "page.html").stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(old_umask)


FULL_DISK_SCRIPT = """
mount -t tmpfs -o size=600k tmpfs full
"$1" lines --html full/a.html "$2"
cp full/a.html before.html
head -c 1m /dev/zero >full/pad 2>/dev/null
for words in "lines --html full/a.html" "lines --html full/new.html" "flamegraph -o full/new.svg" \
    "export -o full/new.folded" "lines --json full/new.json"; do
  "$1" $words "$2" && echo "no error: $words"
done
cmp full/a.html before.html
ls -A full
"""


def test_a_full_disk_loses_nothing(run, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs a file system of its own")
    run(command(), "record", "-o", "r.data", "--", python(), PROGRAMS / "kernel.py", "once")
    (tmp_path / "full").mkdir()
    result = run("unshare", "--mount", "sh", "-c", FULL_DISK_SCRIPT, "sh", command(), "r.data")
    assert result.stdout.split() == ["a.html", "pad"], result.stdout
    assert result.stderr.count("cannot write full/") == 5 and result.stderr.count("No space left") == 5, result.stderr
    # Standard output may also be a file on a full disk.
    for args in (["lines", "r.data"], ["completions", "bash"], ["doctor"], ["clean", "-n", "0"]):
        with open("/dev/full", "w") as full_device:
            status = subprocess.run(
                [str(command()), *args], cwd=tmp_path, stdout=full_device, stderr=subprocess.DEVNULL
            )
        assert status.returncode != 0, args


def test_a_source_that_cannot_be_read_does_not_stop_a_bundle(user, run):
    """The source files of an ordinary user's program: one that only root may read, a pipe, and a kernel file."""
    program = user.home / "several.py"
    source_template = "def work{0}(n):\n    return sum(i % 7 for i in range(n))\n"
    module_names = ["one", "two", "three", "four"]
    for number, name in enumerate(module_names):
        source_path = user.home / f"{name}_source.py"
        source_path.write_text(source_template.format(number))
        os.chown(source_path, USER, USER)
    program_lines = [f"import {name}_source" for name in module_names] + ["import os"]
    program_lines += [
        "for _ in range(30):",
        *(f"    {name}_source.work{number}(50_000)" for number, name in enumerate(module_names)),
    ]
    program_lines += [
        "os.unlink('two_source.py'); os.mkfifo('two_source.py')",
        "os.unlink('three_source.py'); os.symlink('/proc/kmsg', 'three_source.py')",
        "os.chmod('one_source.py', 0)",
    ]
    program.write_text("\n".join(program_lines))
    args = [*user.command_prefix, command(), "record", "--bundle", "-o", user.home / "several", "--", python(), program]
    result = run(*args, **user.environment, timeout=SUBCOMMAND_TIMEOUT_S)
    try:
        for name in module_names[:3]:
            assert f"{name}_source.py is not in the bundle: " in result.stderr, result.stderr
        assert (user.home / f"several/root{user.home}/four_source.py").is_file()
    finally:
        shutil.rmtree(user.home / "several")


#: Threads that end after they have sent a signal to the process. Prints how many calls of the main thread went on.
SENDERS = """import os, queue, signal, threading, time
class Interrupted(Exception): pass
def handler(*_): raise Interrupted
signal.signal(signal.SIGUSR1, handler)
late = 0
for _ in range(20):
    start = time.monotonic()
    sender = threading.Timer(0.02, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    sender.start()
    try: queue.Queue().get(timeout=1)
    except (Interrupted, queue.Empty): pass
    late += time.monotonic() - start > 0.8
    sender.join()
print(late)
"""


@pytest.mark.parametrize("options", [(), ("--wall",), ("-s",)])
def test_a_signal_interrupts_the_main_thread(run, tmp_path, options):
    """A sampled thread that ended took the signal that it had sent: 8 to 11 of 20 calls waited until their timeout. A
    thread that a sample interrupts at that moment still takes it: the kernel asks for signals after each handler."""
    (tmp_path / "senders.py").write_text(SENDERS)
    assert run(python(), "senders.py").stdout == "0\n"
    late = int(run(command(), "record", *options, "-o", "f.data", "--", python(), "senders.py").stdout)
    assert late <= 3, late
