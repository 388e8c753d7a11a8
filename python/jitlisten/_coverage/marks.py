"""Bytes that compiled code stores to, and their meaning.

    mark    one byte: a line ran, or the program went from one line to another
    table   the contiguous marks of one compiled function; compilations of the same code share it

Compiled code refers to its table by an external symbol, whose name describes the table:

    jitlisten.coverage.1:DIGEST:PATH:-12>13,13>14,0>20;DIGEST:PATH:...|

-12>13 is the entry of the function whose first line is 12, 20>-12 is an exit, and 0>20 is line 20, reached from any
line. An object in Numba's cache therefore describes its own marks. DIGEST is a hash of the source: if the source has
changed, the object is stale.

The bytes are shared with forked children, so that a line counts even if only a child has run it. A child that is
measured itself gets its own bytes.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import mmap
import operator
import os
import re
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple
from urllib.parse import quote, unquote

from llvmlite import binding

PREFIX = "jitlisten.coverage.1:"
_SYMBOL = re.compile(re.escape(PREFIX).encode() + rb"[!-{]+\|")
# Size of the memory for marks. Untouched anonymous memory costs nothing.
_REGION_BYTES = 64 << 20


class Mark(NamedTuple):
    path: str
    # Line before the step; negative for the entry of a function, 0 for any line.
    from_line: int
    # Line after the step; negative for the exit of a function.
    to_line: int


class Stale(Exception):
    """Cached code was compiled from a different source, or from the same source elsewhere."""


# Symbols of tables

_digests: Dict[str, Tuple[Tuple[int, int], str]] = {}


def source_file(path: str) -> Optional[str]:
    """Returns the file itself, or the archive that contains it; `None` if there is neither."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path if os.path.isfile(path) else None


def digest(path: str) -> Optional[str]:
    """Returns the digest of a file's current contents, or of its archive's; `None` if it cannot be read."""
    try:
        source = source_file(path)
        if source is None:
            return None
        stat = os.stat(source)
        stamp = (stat.st_size, stat.st_mtime_ns)
        cached = _digests.get(source)
        if cached is not None and cached[0] == stamp:
            return cached[1]
        with open(source, "rb") as file:
            value = hashlib.sha256(file.read()).hexdigest()[:16]
    except (OSError, ValueError):
        return None
    _digests[source] = (stamp, value)
    return value


def symbol_of(marks: Iterable[Mark]) -> str:
    """Returns the symbol of a table."""
    parts = []
    for path, group in itertools.groupby(marks, operator.attrgetter("path")):
        pairs = ",".join("%d>%d" % (mark.from_line, mark.to_line) for mark in group)
        parts.append("%s:%s:%s" % (digest(path), quote(path), pairs))
    return PREFIX + ";".join(parts) + "|"


def parse_symbol(name: str) -> List[Mark]:
    """Returns the marks of the table with this symbol; raises `Stale` if a source has changed."""
    marks = []
    for part in name[len(PREFIX) : -1].split(";"):
        source_digest, path, pairs = part.split(":")
        path = unquote(path)
        if digest(path) != source_digest:
            raise Stale(path)
        for pair in pairs.split(","):
            from_line, to_line = pair.split(">")
            marks.append(Mark(path, int(from_line), int(to_line)))
    return marks


# Memory of marks


class _Region:
    """Memory for marks that is shared with forked children."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _REGION_BYTES)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.marks: List[Mark] = []
        self._owner = os.getpid()
        # Marks that a child sharing its parent's memory has already taken. Only the owner clears bytes.
        self._taken: Set[int] = set()

    def allocate(self, marks: Sequence[Mark]) -> Optional[int]:
        """Allocates a table; returns its address, or `None` if the table does not fit."""
        start = len(self.marks)
        if start + len(marks) > _REGION_BYTES:
            return None
        self.marks.extend(marks)
        return self._address + start

    def take(self) -> Set[Mark]:
        """Returns the marks that were set since the last call."""
        used = len(self.marks)
        data = self._memory[:used]
        is_owner = self._owner == os.getpid()
        taken = set()
        index = data.find(b"\1")
        while index >= 0:
            if is_owner:
                self._memory[index] = 0
            if is_owner or index not in self._taken:
                taken.add(self.marks[index])
                if not is_owner:
                    self._taken.add(index)
            index = data.find(b"\1", index + 1)
        return taken

    def use_own_memory(self) -> None:
        """Replaces the memory with zeroed memory at the same address, in a forked child."""
        if self._owner == os.getpid():
            return
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        c_int = ctypes.c_int
        libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, c_int, c_int, c_int, ctypes.c_long)
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _MAP_FIXED
        if libc.mmap(self._address, _REGION_BYTES, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0) == self._address:
            self._owner = os.getpid()
            self._taken.clear()


_MAP_FIXED = 0x10

_regions: List[_Region] = []
_tables: Dict[str, int] = {}


def register(name: str, marks: Optional[Sequence[Mark]] = None) -> None:
    """Defines the symbol of a table before LLVM resolves it."""
    if name in _tables:
        return
    if marks is None:
        marks = parse_symbol(name)
    address = _regions[-1].allocate(marks) if _regions else None
    if address is None:
        _regions.append(_Region())
        address = _regions[-1].allocate(marks)
        if address is None:
            raise MemoryError("a table of %d marks" % len(marks))
    _tables[name] = address
    binding.add_symbol(name, address)


def register_all(data: bytes, path: Optional[str] = None) -> None:
    """Defines the symbol of each table that an object in Numba's cache refers to. Raises `Stale` if it has marks, but
    none of the function's file: the directory was copied with its cache."""
    names = [name.decode("ascii") for name in set(_SYMBOL.findall(data))]
    if names and path is not None and not any(":%s:" % quote(path) in name for name in names):
        raise Stale(path)
    for name in names:
        register(name)


def take() -> Set[Mark]:
    """Returns all marks that were set since the last call."""
    taken: Set[Mark] = set()
    for region in _regions:
        taken |= region.take()
    return taken


def use_own_memory() -> None:
    """Gives this process its own marks; those set by its parent stay with the parent."""
    for region in _regions:
        region.use_own_memory()
