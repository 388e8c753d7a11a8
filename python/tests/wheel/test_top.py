"""`jitlisten top` in a real terminal (tmux): the screen contents, and the state of the terminal after exit."""

import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import time

import pytest
from conftest import PROGRAMS, command, python, require_tool, wait_for


class Pane:
    """A shell in a terminal of 80 columns and 24 rows, run by tmux."""

    def __init__(self, environment, directory):
        self.tmux = require_tool("tmux")
        self.socket = str(directory / "tmux")
        self.directory = directory
        variables = {**environment, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        self.run("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "sh", env=variables, cwd=directory)

    def run(self, *args, **run_options):
        args = [self.tmux, "-S", self.socket, *args]
        return subprocess.run(args, capture_output=True, text=True, check=True, timeout=20, **run_options).stdout

    def send_keys(self, *send_keys):
        self.run("send-keys", *send_keys)

    def type_line(self, text):
        self.run("send-keys", "-l", text)
        self.send_keys("Enter")

    def screen(self):
        return self.run("capture-pane", "-p")

    def wait_for_text(self, *patterns, timeout_s=60):
        """Waits until the screen matches all patterns; returns the screen."""
        screens = [""]

        def screen_matches():
            screens[0] = self.screen()
            return all(re.search(pattern, screens[0], re.MULTILINE) for pattern in patterns)

        try:
            wait_for(screen_matches, patterns, timeout_s)
        except AssertionError:
            raise AssertionError(f"waited for {patterns}\n{screens[0]}") from None
        return screens[0]

    def cursor_and_screen_flags(self):
        return self.run("display-message", "-p", "#{cursor_flag} #{alternate_on}").split()

    def read_settings(self, name):
        self.type_line(f"stty -a >{name}")
        file = self.directory / name
        wait_for(lambda: file.exists() and file.stat().st_size, name)
        # tmux may still be resizing the window.
        return re.sub(r"rows \d+; columns \d+; ", "", file.read_text())

    def close(self):
        subprocess.run([self.tmux, "-S", self.socket, "kill-server"], capture_output=True)


@pytest.fixture
def pane(environment, tmp_path):
    pane = Pane(environment, tmp_path)
    pane.wait_for_text(r"^[#$]")
    yield pane
    pane.close()


def assert_terminal_is_restored(pane, settings_before):
    """Checks that the terminal settings, the cursor and the main screen are restored."""
    pane.wait_for_text(r"^status \d+")
    assert pane.cursor_and_screen_flags() == ["1", "0"]
    assert pane.read_settings("after") == settings_before


TOP_COMMAND = f"{command()} top" if "JITLISTEN_TEST_PYTHON" in os.environ else ""
TOP_DIRECTORY = re.compile(r".*/jitlisten-top-[0-9A-Za-z]{6}$")
BURN_ROW = r"^ +\d+\.\d +\d+\.\d +\d+\.\d\d +\d+\.\d\d │ __main__\.burn"


def test_functions_lines_threads_and_source_of_a_command(pane):
    settings_before = pane.read_settings("before")
    pane.type_line(f"{TOP_COMMAND} -- {python()} {PROGRAMS / 'kernel.py'}; echo status $?")
    screen = pane.wait_for_text(
        BURN_ROW, r"│ +\d+ +total \+= \(i % 7\) \* 0\.5", r"jitlisten top · [1-9]\d* s · 1 thread · 199 Hz"
    )
    assert all(len(line) <= 80 for line in screen.splitlines())
    assert len(screen.rstrip("\n").splitlines()) == 24 and "q quit" in screen.splitlines()[23]
    assert re.search(r"^ +\d+\.\d % by line +\d+\.\d % without a line", screen, re.MULTILINE)
    pane.send_keys("l")
    wait_for(lambda: "total +=" not in pane.screen(), "lines to go")
    pane.send_keys("?")
    pane.wait_for_text("choose a function")
    pane.send_keys("Escape")
    pane.send_keys("t")
    pane.wait_for_text(r"^ +\d+\.\d +\d+\.\d\d │ python \(\d+\)")
    pane.send_keys("Enter")
    pane.wait_for_text(r"thread \d+ only", BURN_ROW)
    pane.send_keys("j")
    pane.send_keys("Enter")
    # The source view shows the whole function, including its header and lines without samples.
    pane.wait_for_text(r"__main__\.burn: .*kernel\.py", r"│ +\d+ +total = 0\.0", r"│ +\d+ +return total")
    pane.send_keys("Escape")
    pane.send_keys("4")
    pane.wait_for_text(r"▾ ?total s")
    pane.run("resize-window", "-x", "60", "-y", "12")
    screen = pane.wait_for_text(r"__main__\.burn")
    wait_for(lambda: "quit" in pane.screen().rstrip("\n").splitlines()[-1], "the new size")
    assert all(len(line) <= 60 for line in pane.screen().splitlines())
    pane.run("resize-window", "-x", "80", "-y", "24")
    pane.send_keys("q")
    pane.wait_for_text(r"^ready")
    assert_terminal_is_restored(pane, settings_before)


def find_top(pane):
    """Returns the PID of top, which is a child of the shell, and a function that lists the children of a process."""
    shell = pane.run("display-message", "-p", "#{pane_pid}").strip()
    children = lambda pid: pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return wait_for(lambda: children(shell), "top")[0], children


def find_scratch_directory(top_pid):
    """Directory of temporary files, which top keeps open and locked."""
    [directory] = [
        file for file in map(os.readlink, pathlib.Path(f"/proc/{top_pid}/fd").iterdir()) if TOP_DIRECTORY.match(file)
    ]
    return pathlib.Path(directory)


@pytest.mark.parametrize("ending", ["Ctrl-C", "SIGTERM", "SIGHUP", "SIGINT"])
def test_the_terminal_is_as_it_was(pane, ending):
    settings_before = pane.read_settings("before")
    pane.type_line(f"{TOP_COMMAND} -- {python()} {PROGRAMS / 'kernel.py'}; echo status $?")
    pane.wait_for_text(BURN_ROW)
    top_pid, children = find_top(pane)
    [program] = children(top_pid)
    scratch = find_scratch_directory(top_pid)
    assert pane.cursor_and_screen_flags() == ["0", "1"], "the other screen, without a cursor"
    if ending == "Ctrl-C":
        pane.send_keys("C-c")
    else:
        os.kill(int(top_pid), getattr(signal, ending))
    assert_terminal_is_restored(pane, settings_before)
    assert not os.path.exists(f"/proc/{program}/maps") or not open(f"/proc/{program}/maps").read(), (
        "the program has ended"
    )
    assert not scratch.exists(), "no files are left"


def test_a_process_that_runs_goes_on_after_it(pane, start):
    program = start(python(), PROGRAMS / "kernel.py", "later")
    settings_before = pane.read_settings("before")
    pane.type_line(f"{TOP_COMMAND} -p {program.pid}; echo status $?")
    pane.wait_for_text(rf"· process {program.pid}")
    # Line tables exist only for code that was compiled after attaching.
    (pathlib.Path(program.output.name).parent / "go").touch()
    pane.wait_for_text(r"│ __main__\.burn", timeout_s=90)
    pane.send_keys("q")
    assert_terminal_is_restored(pane, settings_before)
    assert not program.has_ended()


def test_the_end_of_the_program_is_said_and_its_output_and_status_given(pane):
    pane.type_line(
        f"{TOP_COMMAND} -- {python()} -c 'import sys, time; print(12345); time.sleep(1.5); sys.exit(7)'; echo status $?"
    )
    pane.wait_for_text("has ended with status 7")
    pane.send_keys("q")
    pane.wait_for_text(r"^12345", r"^status 7")


def test_the_table_of_the_whole_run_is_printed_and_the_recording_kept(pane, run, tmp_path):
    pane.type_line(f"{TOP_COMMAND} -o kept.data -- {python()} {PROGRAMS / 'kernel.py'} work; echo status $?")
    # The table shows totals for the whole run, not for the last second.
    totals_of_the_run = r"^ +[1-9]\d*\.\d +[1-9]\d*\.\d +[1-9]\d*\.\d\d +[1-9]\d*\.\d\d │ __main__\.burn"
    pane.wait_for_text(
        r"jitlisten top · has ended, \d+\.\d s",
        totals_of_the_run,
        r"1 compiled in \d+\.\d\d s, the last: kernel\.burn\(int64\)",
    )
    pane.send_keys("q")
    pane.wait_for_text(r"^ jitlisten top · has ended", totals_of_the_run, "kept in .*kept.data", r"^status 0")
    report = json.loads(run(command(), "lines", "--json", "-", "kept.data").stdout)
    assert report["hottest"][0]["path"].endswith("kernel.py") and report["compilations"]


def test_it_ends_with_its_terminal(environment, tmp_path):
    """A closed window ends no process that ignores or blocks the signal for it."""
    process, terminal = pty.fork()
    if process == 0:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.chdir(tmp_path)
        os.execve(command(), ["jitlisten", "top", "--", str(python()), str(PROGRAMS / "kernel.py")], environment)
    seen = b""
    while b"jitlisten top" not in seen:
        seen += os.read(terminal, 4096)
    os.close(terminal)
    wait_for(lambda: os.waitpid(process, os.WNOHANG)[0] == process, "the end")
    assert not list(tmp_path.glob("jitlisten-top-*"))


def test_mistakes_are_sentences(pane, run):
    pane.type_line(f"{TOP_COMMAND} -- nonexistent-program; echo status $?")
    pane.wait_for_text("jitlisten: command not found: nonexistent-program", r"^status 2")
    pane.type_line(f"{TOP_COMMAND} -- sh -c 'exit 3'; echo status $?")
    pane.wait_for_text("nothing was recorded", r"^status 3")
    result = run(command(), "top", "--", "true", status=2)
    assert "needs a terminal" in result.stderr and result.stdout == ""


def test_a_long_recording_takes_no_more_space(pane, tmp_path):
    pane.type_line(f"{TOP_COMMAND} -r 1000 -- {python()} {PROGRAMS / 'kernel.py'}; echo status $?")
    pane.wait_for_text(BURN_ROW)
    top_pid, _ = find_top(pane)
    file = find_scratch_directory(top_pid) / "top.perf.data"
    wait_for(lambda: file.stat().st_size > 300_000, "300 kB of records")
    time.sleep(1.2)
    status = file.stat()
    assert status.st_blocks * 512 < status.st_size / 2, status
    pane.send_keys("q")
    pane.wait_for_text(r"^status 0")
