"""Compiles, forks, then compiles the second function in the parent and the third one in the child: forks.py"""

import os

from three import first, second, third

first(1.0)
child = os.fork()
if child == 0:
    third(1.0)
    os._exit(0)
second(1.0)
_, status = os.waitpid(child, 0)
print(os.getpid(), child, status)
