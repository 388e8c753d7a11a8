"""The bytes that compiled code stores to, and what each of them says.

    mark    one byte: a line has run, or the program went from one line to another
    table   the marks of one compiled function, side by side; compilations of the same code share it

Compiled code names its table as an external symbol, and the symbol's name is the description of the table:

    jitlisten.coverage.1:DIGEST:PATH:-12>13,13>14,0>20;DIGEST:PATH:...|

-12>13 is the entry of the function whose first line is 12, 20>-12 an exit, 0>20 line 20, wherever the program came
from. So an object
from Numba's cache says itself what it marks. DIGEST is of the source's text: for another text the object is stale.

The bytes are shared with forked children, so that a line only a child has run counts. A child that is measured itself
gets its own.
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
_NAMES = re.compile(re.escape(PREFIX).encode() + rb"[!-{]+\|")
# Anonymous memory that is not touched costs nothing.
_REGION = 64 << 20


class Mark(NamedTuple):
    path: str
    # Negative: the entry of a function. 0: wherever from.
    from_line: int
    # Negative: the exit of a function.
    to_line: int


class Stale(Exception):
    """Code from the cache that was compiled from another text."""


# --- names
# ----------------------------------------------------------------------------------------------------------------

_digests: Dict[str, Tuple[Tuple[int, int], str]] = {}


def digest(path: str) -> Optional[str]:
    """Of the file's text as it is now; `None` if it cannot be read."""
    try:
        found = os.stat(path)
        stamp = (found.st_size, found.st_mtime_ns)
        known = _digests.get(path)
        if known is not None and known[0] == stamp:
            return known[1]
        with open(path, "rb") as file:
            text = hashlib.sha256(file.read()).hexdigest()[:16]
    except (OSError, ValueError):
        return None
    _digests[path] = (stamp, text)
    return text


def name_of(marks: Iterable[Mark]) -> str:
    """The symbol of a table."""
    parts = []
    for path, of_one in itertools.groupby(marks, operator.attrgetter("path")):
        pairs = ",".join("%d>%d" % (mark.from_line, mark.to_line) for mark in of_one)
        parts.append("%s:%s:%s" % (digest(path), quote(path), pairs))
    return PREFIX + ";".join(parts) + "|"


def described(name: str) -> List[Mark]:
    """The marks of the table with this symbol."""
    marks = []
    for part in name[len(PREFIX) : -1].split(";"):
        text, path, pairs = part.split(":")
        path = unquote(path)
        if digest(path) != text:
            raise Stale(path)
        for pair in pairs.split(","):
            from_line, to_line = pair.split(">")
            marks.append(Mark(path, int(from_line), int(to_line)))
    return marks


# --- memory
# ---------------------------------------------------------------------------------------------------------------


class _Region:
    """Marks in memory that forked children share."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _REGION)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.marks: List[Mark] = []
        self._owner = os.getpid()
        # In a child that shares its parent's: what it has taken. Only the owner clears.
        self._taken: Set[int] = set()

    def place(self, marks: Sequence[Mark]) -> Optional[int]:
        """The address of a new table; `None` if it does not fit."""
        at = len(self.marks)
        if at + len(marks) > _REGION:
            return None
        self.marks.extend(marks)
        return self._address + at

    def take(self) -> Set[Mark]:
        """What has been marked since the last time."""
        used = len(self.marks)
        bytes_ = self._memory[:used]
        is_owner = self._owner == os.getpid()
        found = set()
        at = bytes_.find(b"\1")
        while at >= 0:
            if is_owner:
                self._memory[at] = 0
            if is_owner or at not in self._taken:
                found.add(self.marks[at])
                if not is_owner:
                    self._taken.add(at)
            at = bytes_.find(b"\1", at + 1)
        return found

    def make_own(self) -> None:
        """In a forked child: other memory at the same place, all zero."""
        if self._owner == os.getpid():
            return
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        number = ctypes.c_int
        libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, number, number, number, ctypes.c_long)
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _MAP_FIXED
        if libc.mmap(self._address, _REGION, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0) == self._address:
            self._owner = os.getpid()
            self._taken.clear()


_MAP_FIXED = 0x10

_regions: List[_Region] = []
_tables: Dict[str, int] = {}


def register(name: str, marks: Optional[Sequence[Mark]] = None) -> None:
    """Gives the symbol an address, before LLVM asks for it."""
    if name in _tables:
        return
    if marks is None:
        marks = described(name)
    address = _regions[-1].place(marks) if _regions else None
    if address is None:
        _regions.append(_Region())
        address = _regions[-1].place(marks)
        if address is None:
            raise MemoryError("a table of %d marks" % len(marks))
    _tables[name] = address
    binding.add_symbol(name, address)


def register_all(data: bytes) -> None:
    """Each table that an object of Numba's cache names."""
    for name in set(_NAMES.findall(data)):
        register(name.decode("ascii"))


def lines_with_code(path: str) -> Set[int]:
    """All lines of a file that have marks, whether they have run or not."""
    return {line for region in _regions for mark in region.marks if mark.path == path for line in mark[1:] if line > 0}


def take() -> Set[Mark]:
    """What has run since the last time."""
    found: Set[Mark] = set()
    for region in _regions:
        found |= region.take()
    return found


def make_own() -> None:
    """This process is measured by itself from now on; what its parent has run is the parent's."""
    for region in _regions:
        region.make_own()
