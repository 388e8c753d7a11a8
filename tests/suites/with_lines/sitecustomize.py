"""Enables line tables in Numba's code for every Python that has this directory in PYTHONPATH."""

import jitlisten._lines

jitlisten._lines.install()
