"""Makes code that Numba compiles visible to profilers and debuggers."""

__version__ = "0.1.0"
