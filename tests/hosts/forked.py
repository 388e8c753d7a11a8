"""Compiles, forks, and compiles in the child, which outlives its parent.

Prints lines "WHO FUNCTION FILE", and finally the child's view of the lock on its parent's directory.
"""

import ctypes
import fcntl
import os
import pathlib
import time

import jit
from where import backing_file

engine = jit.engine()
prototype = ctypes.CFUNCTYPE(ctypes.c_int64)


def compile(name, result):
    address = jit.compile_into(engine, f"define i64 @{name}() {{ ret i64 {result} }}", name)
    assert prototype(address)() == result
    return address


def report(process, name, address):
    os.write(1, f"{process} {name} {backing_file(address)}\n".encode())


common = compile("common", 1)
report("parent", "common", common)
parent = os.getpid()
if os.fork() == 0:
    of_child = compile("of_child", 2)
    report("child", "common", common)
    report("child", "of_child", of_child)
    deadline = time.monotonic() + 60
    while os.getppid() == parent and time.monotonic() < deadline:
        time.sleep(0.02)
    alive = pathlib.Path(backing_file(common)).with_name("alive")
    with open(alive) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(1, b"lock free\n")
        except BlockingIOError:
            os.write(1, b"lock held\n")
    os._exit(0)
of_parent = compile("of_parent", 3)
report("parent", "of_parent", of_parent)
