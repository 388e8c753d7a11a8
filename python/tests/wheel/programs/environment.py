"""Says what it was started with, and what its child was started with."""

import json
import os
import subprocess
import sys

WORDS = ("LD_PRELOAD", "PYTHONPATH", "JITLISTEN", "JITLISTEN_RUN")


def look():
    with open("/proc/self/maps") as maps:
        library = "libjitlisten.so" in maps.read()
    return {
        "library": library,
        "paths": [place for place in sys.path if "_site" in place],
        "customized": getattr(sys, "customized", 0),
        **{word: os.environ.get(word) for word in WORDS},
    }


if __name__ == "__main__":
    if sys.argv[1:] == ["child"]:
        # One write, whatever the buffering is: two ranks share the pipe.
        print(json.dumps(look()) + "\n", end="")
    else:
        child = subprocess.run([sys.executable, __file__, "child"], capture_output=True, text=True, check=True)
        print(json.dumps({"self": look(), "child": json.loads(child.stdout)}))
        sys.exit(int(os.environ.get("STATUS", "0")))
