"""Tests of the wheel as it is installed: every program runs in the environment that ci/wheel.sh has made, none from the
source tree."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

HERE = pathlib.Path(__file__).parent
PROGRAMS = HERE / "programs"
# In the background of a shell they are ignored, which every program that is started here would inherit.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
#: A test that waits longer than this has failed. The machine may have much else to do.
PATIENCE = 300


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: with `ci/wheel.sh test -m slow`, behind the other tests of CI")


def python():
    return pathlib.Path(os.environ["JITLISTEN_TEST_PYTHON"])


def command():
    return python().parent / "jitlisten"


def need(tool):
    """The path of a tool. In CI it has to be there."""
    found = shutil.which(tool)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"CI must have {tool}")
        pytest.skip(f"no {tool}")
    return found


def other_environment(program):
    """A program of one of the environments of ci/setup.sh. In CI it has to be there."""
    found = HERE.parents[2] / "target" / "venv" / program
    if not found.exists():
        if os.environ.get("CI"):
            pytest.fail(f"CI must have {found}")
        pytest.skip(f"no {found}")
    return found


def wait_for(look, what, patience=PATIENCE):
    """Until ``look`` returns something true; returns that."""
    end = time.monotonic() + patience
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < end, f"waited {patience} s for {what}"
        time.sleep(0.05)


@pytest.fixture
def environment(tmp_path):
    """Nothing of the environment of the tests that could reach a program."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JITLISTEN", "PYTHON", "LD_"))}
    kept.update(NUMBA_CACHE_DIR=str(tmp_path / "cache"), NUMBA_THREADING_LAYER="workqueue", OPENBLAS_NUM_THREADS="1")
    kept["HOME"] = str(tmp_path)
    kept["JITLISTEN_DIR"] = str(images_place())
    return kept


def images_place():
    place = HERE.parents[2] / "target" / "wheel" / "images"
    place.mkdir(parents=True, exist_ok=True)
    return place


@pytest.fixture
def run(environment, tmp_path):
    """Runs a program to its end; arguments are words, keywords change the environment; a ``status`` of None is any."""

    def run(*words, status=0, timeout=PATIENCE, **changes):
        merged = {**environment, **{name: str(value) for name, value in changes.items()}}
        done = subprocess.run(
            [str(word) for word in words], env=merged, cwd=tmp_path, capture_output=True, text=True, timeout=timeout
        )
        assert status in (None, done.returncode), f"{words}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run


class Running:
    """A program that runs, and says ``ready`` when it does what it is for."""

    def __init__(self, words, environment, directory):
        self.output = open(directory / "output", "w+")
        self.process = subprocess.Popen(
            [str(word) for word in words], env=environment, cwd=directory, stdout=self.output, stderr=subprocess.STDOUT
        )
        self.pid = self.process.pid
        wait_for(lambda: self.has_said("ready") or self.has_ended(), "the program to be ready")
        assert not self.has_ended(), self.said()

    def has_ended(self):
        return self.process.poll() is not None

    def said(self):
        return pathlib.Path(self.output.name).read_text()

    def has_said(self, word):
        return word in self.said()

    def stop(self):
        if not self.has_ended():
            self.process.kill()
        self.process.wait()
        self.output.close()


@pytest.fixture
def start(environment, tmp_path):
    """Starts a program that runs until the test is over."""
    running = []

    def start(*words, **changes):
        merged = {**environment, **{name: str(value) for name, value in changes.items()}}
        running.append(Running(words, merged, tmp_path))
        return running[-1]

    yield start
    for program in running:
        program.stop()


def perf_map(pid):
    path = pathlib.Path(f"/tmp/perf-{pid}.map")
    return path.read_text() if path.exists() else ""


@pytest.fixture(autouse=True, scope="session")
def nothing_from_the_source_tree():
    place = subprocess.run(
        [str(python()), "-c", "import jitlisten; print(jitlisten.__file__)"],
        cwd="/", capture_output=True, text=True, check=True,
    ).stdout
    assert "site-packages" in place
    assert sys.version_info >= (3, 8)
