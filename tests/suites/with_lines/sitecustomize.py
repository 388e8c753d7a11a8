"""Enables line tables in Numba's code in every Python process that has this directory in PYTHONPATH."""

import jitlisten._lines

jitlisten._lines.install()
