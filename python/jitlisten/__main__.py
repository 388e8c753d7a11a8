"""``python -m jitlisten``: the command of this installation."""

import os
import sys
import sysconfig
from typing import Iterator


def _candidates() -> Iterator[str]:
    from importlib import metadata

    try:
        for file in metadata.files("jitlisten") or []:
            if file.name == "jitlisten" and file.parent.name == "bin":
                yield str(file.locate())
    except metadata.PackageNotFoundError:
        pass
    yield os.path.join(sysconfig.get_path("scripts"), "jitlisten")


def main() -> int:
    for command in _candidates():
        if os.access(command, os.X_OK):
            os.execv(command, ["jitlisten"] + sys.argv[1:])
    print("jitlisten: the command is not installed beside this package: pip install jitlisten", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
