"""Every Python from 3.8 on that is here: the package has no part that is compiled for one of them. Python 3.14 and 3.15
are tried in the userlands (`ci/wheel.sh userland sid`), where the packaging of this machine has none."""

import glob
import os
import subprocess
import sys

import pytest
from conftest import command
from spaces import package

VERSIONS = [f"3.{minor}" for minor in range(8, 16)]
#: What has to be on any machine on which this is developed or tested.
FEWEST = 2


def find(version):
    """A Python of that version: from PATH, else from pyenv, whose programs in PATH may still refuse to run."""
    root = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    for candidate in [f"python{version}", *sorted(glob.glob(f"{root}/versions/{version}.*/bin/python{version}"))]:
        try:
            ask = [candidate, "-I", "-c", "import sys, ctypes; print('%d.%d' % sys.version_info[:2])"]
            if subprocess.run(ask, capture_output=True, text=True).stdout.strip() == version:
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
    interpreter = find(version)
    if interpreter is None:
        pytest.skip(f"no Python {version} here")
    # Only the package, as `pip install --target` would have put it there.
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "jitlisten").symlink_to(package())
    said = run(interpreter, "-c", PROGRAM, tmp_path / "packages").stdout.split()
    assert said == ["ok", *version.split(".")]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_command_in_front_of_each_python(run, version):
    interpreter = find(version)
    if interpreter is None:
        pytest.skip(f"no Python {version} here")
    ask = (
        "import os; print('libjitlisten' in open('/proc/self/maps').read(), os.environ.get('LD_PRELOAD'), 'jitlisten'"
        " in __import__('sys').modules)"
    )
    said = run(command(), "run", "--", interpreter, "-c", ask)
    assert said.stdout.split()[:2] == ["True", "None"] and said.stderr == ""


def test_some_pythons_are_here():
    assert sum(find(version) is not None for version in VERSIONS) >= FEWEST, sys.version
