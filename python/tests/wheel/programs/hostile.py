"""A Python program that plays tricks on whoever looks at it: `hostile.py BEHAVIOUR [VICTIM]`. See test_hostile.py."""

import glob
import os
import signal
import sys
import tempfile
import threading
import time

behaviour, victim = sys.argv[1], (sys.argv[2:] or [""])[0]
MAP = f"/tmp/perf-{os.getpid()}.map"


def plant(kind):
    try:
        os.unlink(MAP)
    except OSError:
        pass
    try:
        if kind == "link":
            os.symlink(victim, MAP)
        elif kind == "pipe":
            os.mkfifo(MAP)
        elif kind == "file":
            open(MAP, "w").close()
        elif kind == "device":
            os.symlink("/dev/zero", MAP)
        elif kind == "sparse":
            open(MAP, "w").close()
            os.truncate(MAP, 64 << 30)
        elif kind == "directory":
            os.mkdir(MAP)
    except OSError:
        pass


def swap():
    while True:
        for kind in ("link", "pipe", "file", "none"):
            plant(kind)


def swap_scratch():
    """Pipes in the places of the files of `top`, which it makes with the rights of this user."""
    while True:
        for place in {"/tmp", tempfile.gettempdir()}:
            for directory in glob.glob(f"{place}/jitlisten-top-*"):
                for name in ("output", "top.perf.data"):
                    file = os.path.join(directory, name)
                    try:
                        if os.path.isfile(file):
                            os.unlink(file)
                        elif name == "output":
                            continue
                        os.mkfifo(file)
                    except OSError:
                        pass
        time.sleep(0.001)


def say():
    while True:
        print("alive", flush=True)
        time.sleep(0.05)


if behaviour in ("link", "pipe", "directory", "device", "sparse"):
    plant(behaviour)
elif behaviour in ("swaps", "scratch"):
    threading.Thread(target=swap if behaviour == "swaps" else swap_scratch, daemon=True).start()
print("ready", flush=True)
if behaviour == "execs":
    # The number stays, the program is another one each time.
    time.sleep(0.02)
    os.execve(sys.executable, [sys.executable, *sys.argv], dict(os.environ))
if behaviour == "forks":
    while True:
        if os.fork() == 0:
            os._exit(0)
        os.wait()
if behaviour == "ends":
    end = time.monotonic() + float(victim)
    while time.monotonic() < end:
        pass
    os._exit(0)
if behaviour == "stops":
    os.kill(os.getpid(), signal.SIGSTOP)
say()
