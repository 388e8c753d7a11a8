"""A Python process that misbehaves while tools inspect it: `hostile.py BEHAVIOUR [VICTIM]`. See test_hostile.py."""

import glob
import os
import signal
import sys
import tempfile
import threading
import time

behaviour, victim = sys.argv[1], (sys.argv[2:] or [""])[0]
PERF_MAP = f"/tmp/perf-{os.getpid()}.map"


def plant_map(kind):
    try:
        os.unlink(PERF_MAP)
    except OSError:
        pass
    try:
        if kind == "link":
            os.symlink(victim, PERF_MAP)
        elif kind == "pipe":
            os.mkfifo(PERF_MAP)
        elif kind == "file":
            open(PERF_MAP, "w").close()
        elif kind == "device":
            os.symlink("/dev/zero", PERF_MAP)
        elif kind == "sparse":
            open(PERF_MAP, "w").close()
            os.truncate(PERF_MAP, 64 << 30)
        elif kind == "directory":
            os.mkdir(PERF_MAP)
    except OSError:
        pass


def swap_map():
    while True:
        for kind in ("link", "pipe", "file", "none"):
            plant_map(kind)


def swap_scratch():
    """Replaces the files that `top` creates with this user's permissions by pipes."""
    while True:
        for parent in {"/tmp", tempfile.gettempdir()}:
            for directory in glob.glob(f"{parent}/jitlisten-top-*"):
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


def report_alive():
    while True:
        print("alive", flush=True)
        time.sleep(0.05)


if behaviour in ("link", "pipe", "directory", "device", "sparse"):
    plant_map(behaviour)
elif behaviour in ("swaps", "scratch"):
    threading.Thread(target=swap_map if behaviour == "swaps" else swap_scratch, daemon=True).start()
print("ready", flush=True)
if behaviour == "execs":
    # Execs itself, so the PID stays the same while the program image is replaced again and again.
    time.sleep(0.02)
    os.execve(sys.executable, [sys.executable, *sys.argv], dict(os.environ))
if behaviour == "forks":
    while True:
        if os.fork() == 0:
            os._exit(0)
        os.wait()
if behaviour == "ends":
    deadline = time.monotonic() + float(victim)
    while time.monotonic() < deadline:
        pass
    os._exit(0)
if behaviour == "stops":
    os.kill(os.getpid(), signal.SIGSTOP)
report_alive()
