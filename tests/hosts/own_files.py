"""Compiles a function and prints in which ways the process holds its jitdump open: own_files.py

Lines: `map PERMISSIONS PATH`, `fd FLAGS PATH`, `mode OCTAL PATH`.
"""

import os

from numba import njit


@njit
def something(x):
    return x + 1.0


something(1.0)
path = None
with open("/proc/self/maps") as maps:
    for line in maps:
        fields = line.split()
        if fields[-1].endswith(".dump"):
            path = fields[-1]
            print("map", fields[1], path)
for descriptor in os.listdir("/proc/self/fd"):
    try:
        target = os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        continue
    if target == path:
        with open(f"/proc/self/fdinfo/{descriptor}") as fdinfo:
            flags = [line.split()[1] for line in fdinfo if line.startswith("flags:")]
        print("fd", flags[0], target)
for file_or_directory in (path, os.path.dirname(path)):
    print("mode", oct(os.lstat(file_or_directory).st_mode & 0o777), file_or_directory)
