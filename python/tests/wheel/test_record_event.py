"""Programs that jitlisten's own thread or signal could disturb while `jitlisten record` counts events. The programs
must behave as without jitlisten."""

import pytest
from conftest import command, python

RECORD_OPTIONS = (("-e", "context-switches"), ("-e", "page-faults"), ("-r", "499"))
#: Re-executes itself repeatedly through one of libc's exec functions, working in between.
EXEC_PROGRAM = """
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
EXEC_FUNCTIONS = ("execv", "execl", "execlp", "execle", "fexecve", "execveat", "syscall")


@pytest.mark.parametrize("exec_function", EXEC_FUNCTIONS)
def test_a_program_that_executes_another_one_lives(run, tmp_path, exec_function):
    (tmp_path / "executes.py").write_text(EXEC_PROGRAM)
    for options in RECORD_OPTIONS:
        result = run(command(), "record", "--no-lines", *options, "--", python(), "-S", "executes.py", 8, exec_function)
        assert result.stdout == "end\n", options


def test_no_signal_waits_for_the_next_program(run, tmp_path):
    """A program that blocks all signals execs one that unblocks them, both during and after a recording."""
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
        for prefix_and_arguments in ((command(), "record", "-e", event, "--"), ()), ((), (event,)):
            prefix, arguments = prefix_and_arguments
            assert run(*prefix, python(), "blocks.py", *arguments).stdout == "alive\n", (event, prefix_and_arguments)


def test_the_programs_signals_are_its_own(run, tmp_path):
    """The program sees no signal handler, and each unhandled signal still ends the program."""
    program = (
        "import os, signal, sys\n"
        "pages = [bytearray(1 << 20) for _ in range(30)]\n"
        "numbers = [n for n in range(1, 65) if n not in (32, 33)]\n"
        "print([n for n in numbers if signal.getsignal(n) not in (signal.SIG_DFL, signal.SIG_IGN)], flush=True)\n"
        "os.kill(os.getpid(), int(sys.argv[1]))\n"
        "print('survived')\n"
    )
    for signal_number in 29, 16, 30, 64:
        for options in ("-e", "page-faults"), ("-r", "499"):
            result = run(
                command(), "record", *options, "--", python(), "-c", program, signal_number, status=-signal_number
            )
            assert result.stdout == "[2]\n", (signal_number, options)


def test_a_program_may_make_namespaces(run, tmp_path):
    """The kernel allows only single-threaded processes to create these namespaces."""
    program = (
        "import ctypes, os, sys, time\n"
        "libc, MOUNT, USER, PID = ctypes.CDLL(None, use_errno=True), 0x20000, 0x10000000, 0x20000000\n"
        "def made(result):\n"
        "    if result != 0 or ctypes.get_errno() != 0: raise SystemExit(os.strerror(ctypes.get_errno()))\n"
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
    for method in "unshare", "syscall":
        if run(python(), "spaces.py", method, status=None).stdout != "made\n":
            pytest.skip("namespaces are not allowed here")
        for options in (), ("--wall",), ("-e", "cpu-clock"):
            result = run(command(), "record", *options, "-o", "f.data", "--", python(), "spaces.py", method)
            assert result.stdout == "made\n", (method, options)
            # After the raw system call no thread can be started, so the recording ends there, but its file is complete.
            functions = run(command(), "lines", "f.data").stdout
            assert "work" in functions, (method, options)
            assert method == "syscall" or "after" in functions, (method, options)
