"""Found by every Python that has this directory in PYTHONPATH: what Numba compiles has lines."""

import jitlisten._lines

jitlisten._lines.install()
