"""Forks two children, one after the other: the first works, the second does nothing. Prints their process IDs."""

import os
import sys
import time


def work(seconds):
    deadline = time.process_time() + seconds
    while time.process_time() < deadline:
        pass


def run_child(seconds):
    pid = os.fork()
    if pid == 0:
        if seconds:
            work(seconds)
        os._exit(0)
    os.waitpid(pid, 0)
    print(pid, flush=True)


def main():
    work(0.1)
    run_child(float(sys.argv[1]))
    run_child(0)


main()
