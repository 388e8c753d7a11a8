"""Two children of a fork, one after the other: one works, the other does nothing. Prints their numbers."""

import os
import sys
import time


def work(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def child(seconds):
    pid = os.fork()
    if pid == 0:
        if seconds:
            work(seconds)
        os._exit(0)
    os.waitpid(pid, 0)
    print(pid, flush=True)


def main():
    work(0.1)
    child(float(sys.argv[1]))
    child(0)


main()
