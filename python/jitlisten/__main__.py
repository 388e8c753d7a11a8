"""``python -m jitlisten`` runs the command of this installation."""

import os
import sys
import sysconfig
from typing import Iterator, Optional


def _candidates() -> Iterator[str]:
    from importlib import metadata

    try:
        for file in metadata.files("jitlisten") or []:
            if file.name == "jitlisten" and file.parent.name == "bin":
                yield str(file.locate())
    except metadata.PackageNotFoundError:
        pass
    yield os.path.join(sysconfig.get_path("scripts"), "jitlisten")


def command() -> Optional[str]:
    """Returns the path of the command, or ``None`` if it is not installed."""
    return next((path for path in _candidates() if os.access(path, os.X_OK)), None)


def main() -> int:
    program = command()
    if program is not None:
        # The command runs `prog.py` with this Python.
        os.execve(program, ["jitlisten"] + sys.argv[1:], {**os.environ, "JITLISTEN_PYTHON": sys.executable})
    print("jitlisten: the command is not installed beside this package: pip install jitlisten", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
