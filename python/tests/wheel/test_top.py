"""`jitlisten top` in a real terminal, tmux: what is on its screen, and how it leaves the terminal."""

import json
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest
from conftest import PROGRAMS, command, need, python, wait_for


class Pane:
    """A shell in a terminal of 80 by 24."""

    def __init__(self, environment, directory):
        self.tmux = need("tmux")
        self.socket = str(directory / "tmux")
        self.directory = directory
        kept = {**environment, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        self.run("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "sh", env=kept, cwd=directory)

    def run(self, *words, **more):
        words = [self.tmux, "-S", self.socket, *words]
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=20, **more).stdout

    def keys(self, *keys):
        self.run("send-keys", *keys)

    def type(self, text):
        self.run("send-keys", "-l", text)
        self.keys("Enter")

    def screen(self):
        return self.run("capture-pane", "-p")

    def shows(self, *texts, patience=60):
        """Waits until all texts are on the screen; returns the screen."""
        seen = [""]

        def look():
            seen[0] = self.screen()
            return all(re.search(text, seen[0], re.MULTILINE) for text in texts)

        try:
            wait_for(look, texts, patience)
        except AssertionError:
            raise AssertionError(f"waited for {texts}\n{seen[0]}") from None
        return seen[0]

    def cursor_and_screen(self):
        return self.run("display-message", "-p", "#{cursor_flag} #{alternate_on}").split()

    def settings(self, name):
        self.type(f"stty -a >{name}")
        file = self.directory / name
        wait_for(lambda: file.exists() and file.stat().st_size, name)
        # The window's size is tmux's, which may still be changing it.
        return re.sub(r"rows \d+; columns \d+; ", "", file.read_text())

    def close(self):
        subprocess.run([self.tmux, "-S", self.socket, "kill-server"], capture_output=True)


@pytest.fixture
def pane(environment, tmp_path):
    pane = Pane(environment, tmp_path)
    pane.shows(r"^[#$]")
    yield pane
    pane.close()


def assert_as_it_was(pane, before):
    """The terminal has its settings, its cursor and its first screen."""
    pane.shows(r"^status \d+")
    assert pane.cursor_and_screen() == ["1", "0"]
    assert pane.settings("after") == before


TOP = f"{command()} top" if "JITLISTEN_TEST_PYTHON" in os.environ else ""
TOP_DIRECTORY = re.compile(r".*/jitlisten-top-[0-9A-Za-z]{6}$")
BURN = r"^ +\d+\.\d +\d+\.\d +\d+\.\d\d +\d+\.\d\d │ __main__\.burn"


def test_functions_lines_threads_and_source_of_a_command(pane):
    before = pane.settings("before")
    pane.type(f"{TOP} -- {python()} {PROGRAMS / 'kernel.py'}; echo status $?")
    screen = pane.shows(BURN, r"│ +\d+ +total \+= \(i % 7\) \* 0\.5", r"jitlisten top · [1-9]\d* s · 1 thread · 199 Hz")
    assert all(len(line) <= 80 for line in screen.splitlines())
    assert len(screen.rstrip("\n").splitlines()) == 24 and "q quit" in screen.splitlines()[23]
    assert re.search(r"^ +\d+\.\d % by line +\d+\.\d % without a line", screen, re.MULTILINE)
    pane.keys("l")
    wait_for(lambda: "total +=" not in pane.screen(), "lines to go")
    pane.keys("?")
    pane.shows("choose a function")
    pane.keys("Escape")
    pane.keys("t")
    pane.shows(r"^ +\d+\.\d +\d+\.\d\d │ python \(\d+\)")
    pane.keys("Enter")
    pane.shows(r"thread \d+ only", BURN)
    pane.keys("j")
    pane.keys("Enter")
    # The function as it stands in the file, with a head and lines without samples.
    pane.shows(r"__main__\.burn: .*kernel\.py", r"│ +\d+ +total = 0\.0", r"│ +\d+ +return total")
    pane.keys("Escape")
    pane.keys("4")
    pane.shows(r"▾ ?total s")
    pane.run("resize-window", "-x", "60", "-y", "12")
    screen = pane.shows(r"__main__\.burn")
    wait_for(lambda: "quit" in pane.screen().rstrip("\n").splitlines()[-1], "the new size")
    assert all(len(line) <= 60 for line in pane.screen().splitlines())
    pane.run("resize-window", "-x", "80", "-y", "24")
    pane.keys("q")
    pane.shows(r"^ready")
    assert_as_it_was(pane, before)


def top_of(pane):
    """The process of top itself: the child of the shell."""
    shell = pane.run("display-message", "-p", "#{pane_pid}").strip()
    children = lambda pid: pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return wait_for(lambda: children(shell), "top")[0], children


def scratch_of(top):
    """Its directory, on which it holds a lock."""
    [directory] = [file for file in map(os.readlink, pathlib.Path(f"/proc/{top}/fd").iterdir()) if TOP_DIRECTORY.match(file)]
    return pathlib.Path(directory)


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM", "SIGHUP", "SIGINT"])
def test_the_terminal_is_as_it_was(pane, how):
    before = pane.settings("before")
    pane.type(f"{TOP} -- {python()} {PROGRAMS / 'kernel.py'}; echo status $?")
    pane.shows(BURN)
    top, children = top_of(pane)
    [program] = children(top)
    scratch = scratch_of(top)
    assert pane.cursor_and_screen() == ["0", "1"], "the other screen, without a cursor"
    if how == "Ctrl-C":
        pane.keys("C-c")
    else:
        os.kill(int(top), getattr(signal, how))
    assert_as_it_was(pane, before)
    assert (
        not os.path.exists(f"/proc/{program}/maps") or not open(f"/proc/{program}/maps").read()
    ), "the program has ended"
    assert not scratch.exists(), "no files are left"


def test_a_process_that_runs_goes_on_after_it(pane, start):
    program = start(python(), PROGRAMS / "kernel.py", "later")
    before = pane.settings("before")
    pane.type(f"{TOP} -p {program.pid}; echo status $?")
    pane.shows(rf"· process {program.pid}")
    # What is compiled from now on has lines.
    (pathlib.Path(program.output.name).parent / "go").touch()
    pane.shows(r"│ __main__\.burn", patience=90)
    pane.keys("q")
    assert_as_it_was(pane, before)
    assert not program.has_ended()


def test_the_end_of_the_program_is_said_and_its_output_and_status_given(pane):
    pane.type(f"{TOP} -- {python()} -c 'import sys, time; print(12345); time.sleep(1.5); sys.exit(7)'; echo status $?")
    pane.shows("has ended with status 7")
    pane.keys("q")
    pane.shows(r"^12345", r"^status 7")


def test_the_table_of_the_whole_run_is_printed_and_the_recording_kept(pane, run, tmp_path):
    pane.type(f"{TOP} -o kept.data -- {python()} {PROGRAMS / 'kernel.py'} work; echo status $?")
    # Everything, and not the last second, of which there is nothing.
    whole = r"^ +[1-9]\d*\.\d +[1-9]\d*\.\d +[1-9]\d*\.\d\d +[1-9]\d*\.\d\d │ __main__\.burn"
    pane.shows(
        r"jitlisten top · has ended, \d+\.\d s", whole, r"1 compiled in \d+\.\d\d s, the last: kernel\.burn\(int64\)"
    )
    pane.keys("q")
    pane.shows(r"^ jitlisten top · has ended", whole, "kept in .*kept.data", r"^status 0")
    report = json.loads(run(command(), "lines", "--json", "-", "kept.data").stdout)
    assert report["hottest"][0]["path"].endswith("kernel.py") and report["compilations"]


def test_mistakes_are_sentences(pane, run):
    pane.type(f"{TOP} -- nonexistent-program; echo status $?")
    pane.shows("jitlisten: command not found: nonexistent-program", r"^status 2")
    done = run(command(), "top", "--", "true", status=2)
    assert "needs a terminal" in done.stderr and done.stdout == ""


def test_a_long_recording_takes_no_more_space(pane, tmp_path):
    pane.type(f"{TOP} -r 1000 -- {python()} {PROGRAMS / 'kernel.py'}; echo status $?")
    pane.shows(BURN)
    top, _ = top_of(pane)
    file = scratch_of(top) / "top.perf.data"
    wait_for(lambda: file.stat().st_size > 300_000, "300 kB of records")
    time.sleep(1.2)
    found = file.stat()
    assert found.st_blocks * 512 < found.st_size / 2, found
    pane.keys("q")
    pane.shows(r"^status 0")
