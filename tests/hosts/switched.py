"""Enables the jitdump after a function was compiled, disables the jitdump, and enables it again: switched.py

Prints the function names expected after each step. The library must be preloaded.
"""

import ctypes

from three import first, second, third

jitlisten = ctypes.CDLL(None)


def enable():
    assert jitlisten.jitlisten_enable(b"jitdump") == 0


def disable():
    assert jitlisten.jitlisten_disable(b"jitdump") == 0


first(1.0)
enable()
enable()
second(1.0)
disable()
disable()
third(1.0)
enable()
print("first second | first second third")
