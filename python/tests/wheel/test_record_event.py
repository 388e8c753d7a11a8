"""Programs that `jitlisten record` counts events of, and that make calls which its thread or its signal could disturb:
they end as alone."""

import pytest
from conftest import command, python

RECORDED = (("-e", "context-switches"), ("-e", "page-faults"), ("-r", "499"))
#: Executes itself again and again, in one of the ways of libc's, with work in between.
EXECUTES = """
import ctypes, os, sys, time
left, way = int(sys.argv[1]), sys.argv[2]
libc = ctypes.CDLL(None, use_errno=True)
if not left:
    print("end")
    sys.exit()
pages = [bytearray(1 << 20) for _ in range(3)]
for _ in range(3): time.sleep(0.001)
words = [sys.executable, "-S", sys.argv[0], str(left - 1), way]
encoded = [word.encode() for word in words]
listed = [ctypes.c_char_p(word) for word in encoded] + [ctypes.c_void_p(None)]
array = (ctypes.c_char_p * 6)(*encoded, None)
environment = (ctypes.c_char_p * (len(os.environ) + 1))(*[f"{k}={v}".encode() for k, v in os.environ.items()], None)
try: os.execv("/nowhere", ["nowhere"])
except FileNotFoundError: pass
if way == "execv": os.execv(words[0], words)
if way == "execl": libc.execl(encoded[0], *listed)
if way == "execlp": libc.execlp(encoded[0], *listed)
if way == "execle": libc.execle(encoded[0], *listed, environment)
file = os.open(words[0], os.O_RDONLY | os.O_CLOEXEC)
if way == "fexecve": libc.fexecve(file, array, environment)
if way == "execveat": libc.execveat(file, b"", array, environment, 0x1000)
if way == "syscall": libc.syscall(59 if os.uname().machine == "x86_64" else 221, encoded[0], array, environment)
sys.exit(f"{way}: {os.strerror(ctypes.get_errno())}")
"""
WAYS = ("execv", "execl", "execlp", "execle", "fexecve", "execveat", "syscall")


@pytest.mark.parametrize("way", WAYS)
def test_a_program_that_executes_another_one_lives(run, tmp_path, way):
    (tmp_path / "executes.py").write_text(EXECUTES)
    for words in RECORDED:
        done = run(command(), "record", "--no-lines", *words, "--", python(), "-S", "executes.py", 8, way)
        assert done.stdout == "end\n", words


def test_no_signal_waits_for_the_next_program(run, tmp_path):
    """A program that blocks all signals and executes one that does not; in a recording, and after one."""
    (tmp_path / "blocks.py").write_text(
        "import os, signal, sys, time\n"
        "everything = set(range(1, 65)) - {32, 33}\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, everything)\n"
        "def work():\n"
        "    until = time.monotonic() + 0.1\n"
        "    while time.monotonic() < until: sum(range(1000)); time.sleep(0.001)\n"
        "if sys.argv[1:]:\n"
        "    import jitlisten\n"
        "    with jitlisten.record('part.data', event=sys.argv[1], lines=False): work()\n"
        "    assert not signal.sigpending()\n"
        "else:\n"
        "    work()\n"
        "signals = 'import signal; signal.pthread_sigmask(signal.SIG_UNBLOCK, set(range(1, 65)) - {32, 33})'\n"
        "os.execv(sys.executable, [sys.executable, '-c', signals + '; print(\"alive\")'])\n"
    )
    for event in "context-switches", "cpu-clock":
        for words in ((command(), "record", "-e", event, "--"), ()), ((), (event,)):
            before, after = words
            assert run(*before, python(), "blocks.py", *after).stdout == "alive\n", (event, words)


def test_the_programs_signals_are_its_own(run, tmp_path):
    """No handler is to be seen, and each signal without one ends the program."""
    program = (
        "import os, signal, sys\n"
        "pages = [bytearray(1 << 20) for _ in range(30)]\n"
        "numbers = [n for n in range(1, 65) if n not in (32, 33)]\n"
        "print([n for n in numbers if signal.getsignal(n) not in (signal.SIG_DFL, signal.SIG_IGN)], flush=True)\n"
        "os.kill(os.getpid(), int(sys.argv[1]))\n"
        "print('survived')\n"
    )
    for number in 29, 16, 30, 64:
        for recorded in ("-e", "page-faults"), ("-r", "499"):
            done = run(command(), "record", *recorded, "--", python(), "-c", program, number, status=-number)
            assert done.stdout == "[2]\n", (number, recorded)


def test_a_program_may_make_namespaces(run, tmp_path):
    """The kernel refuses it to a process with several threads."""
    program = (
        "import ctypes, os, sys, time\n"
        "libc, MOUNT, USER, PID = ctypes.CDLL(None, use_errno=True), 0x20000, 0x10000000, 0x20000000\n"
        "def made(result):\n"
        "    if result != 0: raise SystemExit(os.strerror(ctypes.get_errno()))\n"
        "def work():\n"
        "    until = time.process_time() + 0.3\n"
        "    while time.process_time() < until: sum(range(1000))\n"
        "def after(): work()\n"
        "work()\n"
        "own = os.open('/proc/self/ns/mnt', os.O_RDONLY)\n"
        "for _ in range(20): made(libc.setns(own, MOUNT))\n"
        "if sys.argv[1] == 'unshare': made(libc.unshare(USER))\n"
        "else: made(libc.syscall(272 if os.uname().machine == 'x86_64' else 97, USER | PID))\n"
        "after()\n"
        "print('made')\n"
    )
    (tmp_path / "spaces.py").write_text(program)
    for way in "unshare", "syscall":
        if run(python(), "spaces.py", way, status=None).stdout != "made\n":
            pytest.skip("namespaces are not allowed here")
        for words in (), ("--wall",), ("-e", "cpu-clock"):
            done = run(command(), "record", *words, "-o", "f.data", "--", python(), "spaces.py", way)
            assert done.stdout == "made\n", (way, words)
            # No thread may begin after the second way: the recording ends there, and the file is whole.
            functions = run(command(), "lines", "f.data").stdout
            assert "work" in functions, (way, words)
            assert way == "syscall" or "after" in functions, (way, words)
