"""Support for Numba, shared by lines, coverage and the compilation log. Importing this package does not import Numba.

seams.py        Numba functions that are replaced, and their subscribers
replacement.py  the functions that replace them
imports.py      calls a function when a module has been imported
versions.py     supported versions
cache_keys.py   keeps code with lines, or with marks, apart in Numba's cache
locations.py    additional data of Numba's locations
inlined.py      calls that Numba inlines itself
"""
