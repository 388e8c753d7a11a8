"""The package in every installed Python from 3.8 on; the package contains no extension module. The userlands
(`ci/wheel.sh userland sid`) test Python 3.14 and 3.15, for which this machine has no packages."""

import glob
import os
import subprocess
import sys

import pytest
from conftest import command
from spaces import package_directory

VERSIONS = [f"3.{minor}" for minor in range(8, 16)]
#: Minimum number of Pythons installed on any development or test machine.
MIN_INSTALLED_PYTHONS = 2


def find_python(version):
    """Returns an interpreter of that version from PATH or pyenv; pyenv's shims in PATH may refuse to run."""
    pyenv_root = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    for candidate in [f"python{version}", *sorted(glob.glob(f"{pyenv_root}/versions/{version}.*/bin/python{version}"))]:
        try:
            version_command = [candidate, "-I", "-c", "import sys, ctypes; print('%d.%d' % sys.version_info[:2])"]
            if subprocess.run(version_command, capture_output=True, text=True).stdout.strip() == version:
                return candidate
        except OSError:
            pass
    return None


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import jitlisten
assert "libjitlisten" not in open("/proc/self/maps").read()
jitlisten.enable("perfmap,unwind")
now = jitlisten.status()
assert now.open and now.sinks == ("perfmap", "unwind") and now.version == jitlisten.__version__, now
assert jitlisten.functions() == []
jitlisten.disable()
assert not jitlisten.status().sinks
print("ok", *sys.version_info[:2])
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_the_package_in_each_python(run, version, tmp_path):
    interpreter = find_python(version)
    if interpreter is None:
        pytest.skip(f"no Python {version} here")
    # The package alone, as installed by `pip install --target`.
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "jitlisten").symlink_to(package_directory())
    output = run(interpreter, "-c", PROGRAM, tmp_path / "packages").stdout.split()
    assert output == ["ok", *version.split(".")]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_command_in_front_of_each_python(run, version):
    interpreter = find_python(version)
    if interpreter is None:
        pytest.skip(f"no Python {version} here")
    code = (
        "import os; print('libjitlisten' in open('/proc/self/maps').read(), os.environ.get('LD_PRELOAD'), 'jitlisten'"
        " in __import__('sys').modules)"
    )
    result = run(command(), "run", "--", interpreter, "-c", code)
    assert result.stdout.split()[:2] == ["True", "None"] and result.stderr == ""


def test_some_pythons_are_here():
    assert sum(find_python(version) is not None for version in VERSIONS) >= MIN_INSTALLED_PYTHONS, sys.version


#: Forks, and waits for the child. Python 3.12 and newer warn if the parent has several threads.
FORK = "import os; child = os.fork() or os._exit(3); print(os.waitpid(child, 0)[1] >> 8)"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_recorded_python_forks_without_a_warning(run, version):
    interpreter = find_python(version)
    if interpreter is None:
        pytest.skip(f"no Python {version} here")
    assert run(command(), "record", "--", interpreter, "-W", "error", "-c", FORK).stdout == "3\n"
