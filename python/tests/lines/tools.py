"""What the tests with real tools share."""

import os
import shutil
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARY = os.path.abspath(
    os.environ.get("JITLISTEN_LIBRARY", os.path.join(HERE, "..", "..", "..", "target", "release", "libjitlisten.so"))
)


def need(*names):
    """The first of these programs that is here, from the environment's or from PATH."""
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", "")
    found = next(filter(None, (shutil.which(name, path=path) for name in names)), None)
    if found is None:
        message = "%s is needed" % " or ".join(names)
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return found


def text_of(command, seconds=300, **options):
    """What a command says, on both channels."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds, **options)
    return done.stdout.decode("utf-8", "replace")


def environment(directory, sinks, **more):
    """With the native library."""
    assert os.path.exists(LIBRARY), "make build makes it"
    variables = dict(os.environ, LD_PRELOAD=LIBRARY, JITLISTEN=sinks, JITLISTEN_DIR=str(directory), PYTHONHASHSEED="0")
    variables.pop("JITLISTEN_LINES", None)
    variables.update(more)
    return variables


def program(name, *arguments):
    return [sys.executable, os.path.join(HERE, name)] + list(arguments)


def line_of(name, mark):
    """The line that ends with this comment."""
    with open(os.path.join(HERE, name)) as file:
        return next(number for number, text in enumerate(file, 1) if text.rstrip().endswith("# " + mark))


def images(directory):
    """The files of compiled code, as long as their directory is there."""
    return sorted(str(path) for path in directory.glob("image-*/object-*.so"))
