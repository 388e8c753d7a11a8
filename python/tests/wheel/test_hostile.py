"""The command against processes that lie, plant links, hang, stop, exec and end, as root and as a second user.

A new subcommand that takes a process gets a line in SUBCOMMANDS, a new trick one in TRICKS. Whatever the trick: the
command ends, no file of root's changes, nothing of the process runs with root's rights, and the process goes on.
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
from conftest import PROGRAMS, command, need, python, wait_for
from spaces import USER, User

#: The longest that a subcommand may take here: `record -p` waits 20 s for a process that does not answer, twice.
BOUND = 90

#: Words behind `jitlisten`; PID is the process, OUT a file of the caller's.
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

#: What the process does: a program (hostile.c as `python3.14-llvm` or as a library of ours, or hostile.py), its words,
#: and whether it goes on.
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
    "facts without an end": ("library", ["nested"], True),
    "facts of a device": ("library", ["facts"], True),
    "swaps its map": ("hostile", ["swaps", "VICTIM"], True),
    "swaps the files of top": ("hostile", ["scratch"], True),
    "execs": ("hostile", ["execs"], False),
    "forks": ("hostile", ["forks"], False),
    "is stopped": ("hostile", ["stops"], False),
    **{f"ends after {time} s": ("hostile", ["ends", time], False) for time in ("0.02", "0.1", "0.5")},
}


@pytest.fixture(scope="module")
def place():
    """An ordinary user; a file that only root may change; the liar's program and the mark that it leaves."""
    user = User()
    user.mark = user.home / "mark"
    user.liar = user.home / "python3.14-llvm"
    build = [need("cc"), "-rdynamic", "-O1", "-w", f'-DMARK="{user.mark}"', "-o", user.liar, PROGRAMS / "hostile.c"]
    subprocess.run([str(word) for word in build], check=True)
    user.library = user.home / "libjitlisten.so"
    shutil.copy(user.liar, user.library)
    user.precious = user.home.parent / f"jitlisten-precious-{os.getpid()}"
    user.precious.write_text("precious")
    user.precious.chmod(0o600)
    yield user
    user.precious.unlink()
    user.close()


class Target:
    def __init__(self, place, program, words):
        words = [str(place.precious) if word == "VICTIM" else word for word in words]
        compiled = {"liar": place.liar, "library": place.library}
        own = [compiled[program], "serve"] if program in compiled else [python(), place.program("hostile.py")]
        inner = [*own, *words]
        self.said = place.home / "said"
        with open(self.said, "w") as output:
            self.process = subprocess.Popen(
                [str(word) for word in [*place.words, *inner]], stdout=output, stderr=output,
                env={**os.environ, **place.environment},
            )
        self.pid = self.process.pid
        wait_for(lambda: "ready" in self.said.read_text() or self.process.poll() is not None, "the target")

    def goes_on(self):
        before = self.said.read_text().count("alive")
        wait_for(lambda: self.said.read_text().count("alive") > before, "the target to go on")

    def close(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        map_file = pathlib.Path(f"/tmp/perf-{self.pid}.map")
        if map_file.is_dir() and not map_file.is_symlink():
            map_file.rmdir()
        else:
            map_file.unlink(missing_ok=True)


def on_terminal(words, environment, directory, watched=0):
    """`q` ends it after some seconds."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=directory)
    os.close(theirs)
    begin = time.monotonic()
    end = begin + BOUND
    while process.poll() is None:
        assert time.monotonic() < end, words
        if select.select([ours], [], [], 0.2)[0]:
            try:
                os.read(ours, 65536)
                if time.monotonic() > begin + watched:
                    os.write(ours, b"q")
            except OSError:
                break
    process.wait(BOUND)
    os.close(ours)


def state_of(path):
    about = os.lstat(path)
    return path.read_text(), about.st_ino, about.st_mode, about.st_uid, about.st_nlink, about.st_mtime_ns


@pytest.mark.parametrize("caller", ["root", "user"])
@pytest.mark.parametrize("subcommand", SUBCOMMANDS)
@pytest.mark.parametrize("trick", TRICKS)
def test_it_ends_and_changes_nothing_of_root_s(place, environment, tmp_path, trick, subcommand, caller):
    program, words, goes_on = TRICKS[trick]
    place.mark.unlink(missing_ok=True)
    before = state_of(place.precious)
    target = Target(place, program, words)
    out = (place.home if caller == "user" else tmp_path) / f"{subcommand}.out"
    try:
        words = [{"PID": str(target.pid), "OUT": str(out)}.get(word, word) for word in SUBCOMMANDS[subcommand]]
        as_caller = place.words if caller == "user" else []
        words = [str(word) for word in [*as_caller, command(), *words]]
        merged = {**environment, **(place.environment if caller == "user" else {}), "TERM": "xterm"}
        if subcommand == "top":
            on_terminal(words, merged, tmp_path, watched=3 if "top" in trick else 0)
        else:
            subprocess.run(
                words, env=merged, cwd=tmp_path, capture_output=True, timeout=BOUND, stdin=subprocess.DEVNULL
            )
        assert state_of(place.precious) == before
        marks = place.mark.read_text() if place.mark.exists() else ""
        assert "executed" not in marks and "by user 0" not in marks, marks
        if goes_on:
            target.goes_on()
    finally:
        target.close()
        shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)


def test_no_signal_is_lost(place, environment):
    """Signals of real time are queued and counted, while the process is attached to again and again."""
    count = 3000
    target = Target(place, "liar", ["counts"])

    def masks():
        status = pathlib.Path(f"/proc/{target.pid}/status").read_text().splitlines()
        return [line for line in status if line.startswith(("SigBlk", "SigIgn", "SigCgt"))]

    try:
        before = masks()
        again = 'for i in 1 2 3 4 5 6 7 8 9 10; do "$0" attach "$1"; done'
        words = ["sh", "-c", again, str(command()), str(target.pid)]
        attaching = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        for _ in range(count):
            os.kill(target.pid, signal.SIGRTMIN)
            time.sleep(0.0002)
        attaching.wait(BOUND)
        wait_for(lambda: f"alive {count}\n" in target.said.read_text(), "all signals")
        assert masks() == before and place.mark.read_text().count("called") >= 10
    finally:
        target.close()


def test_a_stop_that_comes_during_an_attempt_is_a_stop(place, run):
    target = Target(place, "liar", ["raises"])
    try:
        run(command(), "attach", "--timeout", "2", target.pid, status=None)
        wait_for(lambda: " T " in pathlib.Path(f"/proc/{target.pid}/stat").read_text(), "the stop")
        os.kill(target.pid, signal.SIGCONT)
        target.goes_on()
    finally:
        target.close()


def test_a_program_in_a_chroot_stays_there(place, environment, tmp_path):
    """Its interpreter is a program of another name outside; neither may run."""
    place.mark.unlink(missing_ok=True)
    root = tmp_path / "root"
    for library in ["/lib", "/lib64", "/usr/lib", "/proc", "/tmp"]:
        (root / library[1:]).mkdir(parents=True, exist_ok=True)
    shutil.copy(place.liar, root / "python3.14-llvm")
    lines = [f"mount --rbind {place} {root}{place}" for place in ("/lib", "/lib64", "/usr/lib") if os.path.isdir(place)]
    lines += [f"mount -t proc proc {root}/proc", f"ln -s {place.precious} {root}/tmp/perf-1.map",
              f"exec chroot {root} /python3.14-llvm serve nothing"]
    words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", "\n".join(lines)]
    with open(tmp_path / "said", "w") as output:
        outside = subprocess.Popen(words, stdout=output, stderr=output)
    try:
        said = tmp_path / "said"
        wait_for(lambda: "alive" in said.read_text() or outside.poll() is not None, "the program")
        assert outside.poll() is None, said.read_text()
        pid = pathlib.Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()[0]
        before = state_of(place.precious)
        for words in SUBCOMMANDS.values():
            words = [{"PID": pid, "OUT": str(tmp_path / "out")}.get(word, word) for word in words if word != "top"]
            subprocess.run([str(command()), *words], env=environment, cwd=tmp_path, capture_output=True, timeout=BOUND)
        assert state_of(place.precious) == before and not place.mark.exists()
    finally:
        outside.kill()
        outside.wait()


#: What another user makes in a shared directory before root records there; FILE is the recording, VICTIM a file of
#: root's that does not exist.
PLANTED = {
    "its directory": "os.umask(0); os.mkdir(FILE + '.images', 0o777)",
    "a link as its directory": "os.symlink('/', FILE + '.images')",
    "a link as the recording": "os.symlink(VICTIM, FILE)",
    "a pipe as the recording": "os.umask(0); os.mkfifo(FILE, 0o666)",
}


@pytest.mark.parametrize("subcommand", ["record", "lines"])
@pytest.mark.parametrize("planted", PLANTED)
def test_what_another_user_planted_is_not_used(place, environment, tmp_path, planted, subcommand):
    shared, victim = pathlib.Path(tempfile.mkdtemp(prefix="jitlisten-shared-")), tmp_path / "victim"
    try:
        shared.chmod(0o1777)
        recording = shared / "jitlisten.perf.data"
        plant = f"import os; FILE, VICTIM = {str(recording)!r}, {str(victim)!r}; {PLANTED[planted]}"
        subprocess.run([str(word) for word in [*place.words, python(), "-c", plant]], check=True)
        before = {path: path.lstat() for path in shared.rglob("*")}
        words = [str(command()), subcommand, "-o", str(recording), "--", str(python()), "-c", "sum(range(10**7))"]
        done = subprocess.run(
            words, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=BOUND,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 2 and "help: choose another -o" in done.stderr, done.stderr
        assert {path: path.lstat() for path in shared.rglob("*")} == before and not victim.exists()
    finally:
        shutil.rmtree(shared)


def test_a_recording_in_a_shared_directory(place, environment, tmp_path):
    """As in /tmp: nobody else can write to what it makes, nor read it."""
    shared = pathlib.Path(tempfile.mkdtemp(prefix="jitlisten-shared-"))
    try:
        shared.chmod(0o1777)
        words = [str(command()), "record", "-o", str(shared / "f.data"), "--", str(python()), "-c", "sum(range(10**8))"]
        subprocess.run(words, env=environment, cwd=tmp_path, check=True, timeout=BOUND)
        assert list((shared / "f.data.images").iterdir())
        for look in ("ls f.data.images", "cat f.data", "touch f.data.images/x", "mv f.data.images x", "rm f.data"):
            tried = [*place.words, "sh", "-c", f"cd {shared} && {look}"]
            assert subprocess.run([str(word) for word in tried], capture_output=True).returncode != 0, look
    finally:
        shutil.rmtree(shared)


assert USER != 0


def readable_by_others(folder):
    """The files that another user could read, and the directories whose names he could see."""
    found = [folder, *folder.rglob("*")]
    return [f"{path} {path.lstat().st_mode & 0o777:o}" for path in found if path.lstat().st_mode & 0o077]


@pytest.mark.parametrize("umask", [0o022, 0o000, 0o077])
def test_what_has_the_text_of_a_private_source_is_private(run, environment, tmp_path, umask):
    tmp_path.chmod(0o755)
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    secret = private / "secret.py"
    secret.write_text("def secret_sum(n):\n    return sum(i % 7 for i in range(n))\nfor _ in range(30): secret_sum(200_000)\n")
    secret.chmod(0o600)
    # A folder that the user made is the bundle's from then on.
    (tmp_path / "b").mkdir(mode=0o755)
    before = os.umask(umask)
    try:
        run(command(), "record", "--bundle", "-o", "b", "--", python(), secret)
        bundle = tmp_path / "b"
        assert (bundle / f"root{secret}").is_file() and readable_by_others(bundle / "root") == []
        modes = {name: (bundle / name).stat().st_mode & 0o777 for name in (".", "jitlisten-bundle", "perf.data")}
        assert modes == {".": 0o700, "jitlisten-bundle": 0o600, "perf.data": 0o600}
        # As root this is what a reader may do, not only what the modes say.
        if os.geteuid() == 0:
            as_nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
            done = run(*as_nobody, "head", "-1", f"{bundle}/root{secret}", status=None)
            assert "Permission denied" in done.stderr, done
        outputs = {
            "page.html": ["lines", "--html"], "lines.json": ["lines", "--json"], "flames.svg": ["flamegraph", "-o"],
            "a.speedscope.json": ["export", "-o"], "a.folded": ["export", "-o"], "callgrind.out": ["export", "-o"],
            "firefox.json": ["export", "-o"], "compiles.json": ["compiles", "--json"],
        }
        for name, (subcommand, option) in outputs.items():
            run(command(), subcommand, option, name, "b")
            assert (tmp_path / name).stat().st_mode & 0o777 == 0o600, name
        # Whoever has opened a page to others keeps it open.
        (tmp_path / "page.html").chmod(0o644)
        run(command(), "lines", "--html", "page.html", "b")
        assert (tmp_path / "page.html").stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


FULL = """
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
    done = run("unshare", "--mount", "sh", "-c", FULL, "sh", command(), "r.data")
    assert done.stdout.split() == ["a.html", "pad"], done.stdout
    assert done.stderr.count("cannot write full/") == 5 and done.stderr.count("No space left") == 5, done.stderr
    # Standard output is a file as well.
    for words in (["lines", "r.data"], ["completions", "bash"], ["doctor"], ["clean", "-n", "0"]):
        with open("/dev/full", "w") as full:
            status = subprocess.run([str(command()), *words], cwd=tmp_path, stdout=full, stderr=subprocess.DEVNULL)
        assert status.returncode != 0, words


def test_a_source_that_cannot_be_read_does_not_stop_a_bundle(place, run):
    """As the ordinary user: a source that only root may read now, a pipe and a file of the kernel's."""
    program = place.home / "several.py"
    text = "def work{0}(n):\n    return sum(i % 7 for i in range(n))\n"
    names = ["one", "two", "three", "four"]
    for number, name in enumerate(names):
        source = place.home / f"{name}_source.py"
        source.write_text(text.format(number))
        os.chown(source, USER, USER)
    lines = [f"import {name}_source" for name in names] + ["import os"]
    lines += ["for _ in range(30):", *(f"    {name}_source.work{number}(50_000)" for number, name in enumerate(names))]
    lines += ["os.unlink('two_source.py'); os.mkfifo('two_source.py')",
              "os.unlink('three_source.py'); os.symlink('/proc/kmsg', 'three_source.py')",
              "os.chmod('one_source.py', 0)"]
    program.write_text("\n".join(lines))
    words = [*place.words, command(), "record", "--bundle", "-o", place.home / "several", "--", python(), program]
    done = run(*words, **place.environment, timeout=BOUND)
    try:
        for name in names[:3]:
            assert f"{name}_source.py is not in the bundle: " in done.stderr, done.stderr
        assert (place.home / f"several/root{place.home}/four_source.py").is_file()
    finally:
        shutil.rmtree(place.home / "several")
