"""Shared helpers and fixtures of the wheel tests. All programs run in the environment that ci/wheel.sh creates, never
from the source tree."""

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
# Shells start background jobs with these signals ignored, and every program started by the tests would inherit that.
for signal_number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(signal_number) == signal.SIG_IGN:
        signal.signal(signal_number, signal.SIG_DFL)
#: Timeout of every wait, in seconds; generous because the machine may be busy.
TEST_TIMEOUT_S = 300


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: with `ci/wheel.sh test -m slow`, behind the other tests of CI")


def python():
    return pathlib.Path(os.environ["JITLISTEN_TEST_PYTHON"])


def command():
    return python().parent / "jitlisten"


def require_tool(name):
    """Returns the path of a tool. If the tool is missing, the test fails in CI and is skipped elsewhere."""
    path = shutil.which(name)
    if path is None:
        if os.environ.get("CI"):
            pytest.fail(f"CI must have {name}")
        pytest.skip(f"no {name}")
    return path


def need_package(run, name):
    """Requires a package that is not part of Numba (`pools` in ci/setup.sh). If the package is missing, fails in CI and
    skips elsewhere."""
    if run(python(), "-c", f"import {name}", status=None).returncode == 0:
        return
    if os.environ.get("CI"):
        pytest.fail(f"CI must have {name}")
    pytest.skip(f"no {name}")


def pinned_program(relative_path):
    """Returns a program from an environment that ci/setup.sh creates. If the program is missing, the test fails in CI
    and is skipped elsewhere."""
    path = HERE.parents[2] / "target" / "venv" / relative_path
    if not path.exists():
        if os.environ.get("CI"):
            pytest.fail(f"CI must have {path}")
        pytest.skip(f"no {path}")
    return path


def wait_for(condition, description, timeout_s=TEST_TIMEOUT_S):
    """Polls ``condition`` until it returns a true value; returns that value."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {description}"
        time.sleep(0.05)


@pytest.fixture
def environment(tmp_path):
    """Environment variables for programs under test, without settings that could affect jitlisten, Python or the
    loader."""
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith(("JITLISTEN", "PYTHON", "LD_"))
    }
    # pytest-xdist sets the width, and pipes have none.
    variables.pop("COLUMNS", None)
    variables.update(
        NUMBA_CACHE_DIR=str(tmp_path / "cache"), NUMBA_THREADING_LAYER="workqueue", OPENBLAS_NUM_THREADS="1"
    )
    variables["HOME"] = str(tmp_path)
    variables["JITLISTEN_DIR"] = str(images_directory())
    return variables


def images_directory():
    directory = HERE.parents[2] / "target" / "wheel" / "images"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@pytest.fixture
def run(environment, tmp_path):
    """Runs a program until it exits; keyword arguments set environment variables. ``status`` is the expected exit
    status; None accepts any."""

    def run(*args, status=0, timeout=TEST_TIMEOUT_S, **variables):
        merged_environment = {**environment, **{name: str(value) for name, value in variables.items()}}
        result = subprocess.run(
            [str(arg) for arg in args],
            env=merged_environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert status in (None, result.returncode), (
            f"{args}: status {result.returncode}\n{result.stdout}\n{result.stderr}"
        )
        return result

    return run


class RunningProgram:
    """A running program that prints ``ready`` once it has reached the state that the test needs."""

    def __init__(self, args, environment, directory):
        self.output = open(directory / "output", "w+")
        self.process = subprocess.Popen(
            [str(arg) for arg in args], env=environment, cwd=directory, stdout=self.output, stderr=subprocess.STDOUT
        )
        self.pid = self.process.pid
        wait_for(lambda: self.has_printed("ready") or self.has_ended(), "the program to be ready")
        assert not self.has_ended(), self.output_text()

    def has_ended(self):
        return self.process.poll() is not None

    def output_text(self):
        return pathlib.Path(self.output.name).read_text()

    def has_printed(self, text):
        return text in self.output_text()

    def stop(self):
        if not self.has_ended():
            self.process.kill()
        self.process.wait()
        self.output.close()


@pytest.fixture
def start(environment, tmp_path):
    """Starts a program, which is killed when the test ends."""
    programs = []

    def start(*args, **variables):
        merged_environment = {**environment, **{name: str(value) for name, value in variables.items()}}
        programs.append(RunningProgram(args, merged_environment, tmp_path))
        return programs[-1]

    yield start
    for program in programs:
        program.stop()


def perf_map(pid):
    path = pathlib.Path(f"/tmp/perf-{pid}.map")
    return path.read_text() if path.exists() else ""


@pytest.fixture(autouse=True, scope="session")
def check_package_is_installed():
    package_path = subprocess.run(
        [str(python()), "-c", "import jitlisten; print(jitlisten.__file__)"],
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "site-packages" in package_path
    assert sys.version_info >= (3, 8)
