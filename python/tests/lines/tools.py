"""Helpers for tests that run real tools."""

import os
import shutil
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARY = os.path.abspath(
    os.environ.get("JITLISTEN_LIBRARY", os.path.join(HERE, "..", "..", "..", "target", "release", "libjitlisten.so"))
)


def require_tool(*names):
    """Returns the first of these programs that is next to this Python or in PATH. If there is none, fails in CI and
    skips the test elsewhere."""
    search_path = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", "")
    path = next(filter(None, (shutil.which(name, path=search_path) for name in names)), None)
    if path is None:
        message = "%s is needed" % " or ".join(names)
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return path


def combined_output(command, timeout_s=300, **options):
    """Standard output and standard error of a command."""
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout_s, **options)
    return result.stdout.decode("utf-8", "replace")


def environment(directory, sinks, **overrides):
    """Environment variables that preload the native library with these sinks."""
    assert os.path.exists(LIBRARY), "make build makes it"
    variables = dict(os.environ, LD_PRELOAD=LIBRARY, JITLISTEN=sinks, JITLISTEN_DIR=str(directory), PYTHONHASHSEED="0")
    variables.pop("JITLISTEN_LINES", None)
    variables.update(overrides)
    return variables


def program(name, *arguments):
    return [sys.executable, os.path.join(HERE, name)] + list(arguments)


def line_marked(name, mark):
    """Number of the line that ends with the comment `mark`."""
    with open(os.path.join(HERE, name)) as file:
        return next(number for number, text in enumerate(file, 1) if text.rstrip().endswith("# " + mark))


def image_paths(directory):
    """Paths of image files of compiled code. They exist only as long as their directory does."""
    return sorted(str(path) for path in directory.glob("image-*/object-*.so"))
