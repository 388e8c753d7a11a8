"""Prints as JSON how jitlisten affects this process and a child process."""

import json
import os
import subprocess
import sys

VARIABLES = ("LD_PRELOAD", "PYTHONPATH", "JITLISTEN", "JITLISTEN_RUN")


def collect_state():
    with open("/proc/self/maps") as maps:
        has_library = "libjitlisten.so" in maps.read()
    return {
        "library": has_library,
        "paths": [path for path in sys.path if "_site" in path],
        "customized": getattr(sys, "customized", 0),
        **{variable: os.environ.get(variable) for variable in VARIABLES},
    }


if __name__ == "__main__":
    if sys.argv[1:] == ["child"]:
        # Two ranks share the pipe, so the line must be written in a single call, regardless of buffering.
        print(json.dumps(collect_state()) + "\n", end="")
    else:
        child = subprocess.run([sys.executable, __file__, "child"], capture_output=True, text=True, check=True)
        print(json.dumps({"self": collect_state(), "child": json.loads(child.stdout)}))
        sys.exit(int(os.environ.get("STATUS", "0")))
