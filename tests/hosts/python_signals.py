"""Checks Python's guarantees for signals and blocking calls, which must hold even if a profiler signals this process;
prints "ok".

Handlers run, sleeps and timeouts last as long as requested, and no call returns early (PEP 475).
"""

import select
import signal
import socket
import subprocess
import sys
import threading
import time

handled_signals = 0


def handler(*_):
    global handled_signals
    handled_signals += 1


for number in (signal.SIGALRM, signal.SIGPROF, signal.SIGUSR1):
    signal.signal(number, handler)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
began = time.monotonic()
time.sleep(0.3)
assert time.monotonic() - began >= 0.3
receiver, sender = socket.socketpair()
receiver.settimeout(0.1)
try:
    receiver.recv(1)
except TimeoutError:
    pass
else:
    raise AssertionError("nothing was sent")
assert select.select([receiver], [], [], 0.1) == ([], [], [])
assert subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True).stdout == b"1\n"
assert not threading.Event().wait(0.1)
signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
signal.setitimer(signal.ITIMER_REAL, 0)
assert signal.sigtimedwait([signal.SIGUSR2], 0.1) is None
assert handled_signals >= 10, handled_signals
print("ok")
