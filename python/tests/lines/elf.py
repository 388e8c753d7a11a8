"""What of an object file becomes part of the process, in a form that can be compared.

Only 64-bit little-endian ELF. Symbols are compared by name, because debug sections shift their numbers.
"""

import re
import struct
from typing import Dict, List, NamedTuple, Tuple

SHT_RELA, SHT_NOBITS = 4, 8
SHF_ALLOC = 2
STT_SECTION, STT_FILE = 3, 4


class Section(NamedTuple):
    name: str
    kind: int
    flags: int
    data: bytes
    link: int
    info: int


class Loaded(NamedTuple):
    """The sections that are loaded by name (with a number, where a name comes twice), their relocations, and
    symbols."""

    sections: Dict[str, bytes]
    relocations: Dict[str, List[Tuple[int, int, str, int]]]
    symbols: List[Tuple[str, str, int, int]]
    # Bytes of everything, and of what describes lines.
    size: int
    debug_size: int


def _text(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode("utf-8", "replace")


def _sections(data: bytes) -> List[Section]:
    assert data[:6] == b"\x7fELF\x02\x01", data[:6]
    offset, = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, offset + i * size) for i in range(count)]
    table = data[headers[names][4] : headers[names][4] + headers[names][5]]
    return [
        Section(_text(table, h[0]), h[1], h[2], b"" if h[1] == SHT_NOBITS else data[h[4] : h[4] + h[5]], h[6], h[7])
        for h in headers
    ]


def read(data: bytes) -> Loaded:
    sections = _sections(data)
    named, seen = {}, {}
    for index, section in enumerate(sections):
        if section.flags & SHF_ALLOC:
            seen[section.name] = seen.get(section.name, 0) + 1
            named[index] = "%s#%d" % (section.name, seen[section.name])
    symbols = []
    for section in sections:
        if section.kind == 2:
            strings = sections[section.link].data
            for at in range(0, len(section.data), 24):
                name, info, _, index, value, size = struct.unpack_from("<IBBHQQ", section.data, at)
                shown = _text(strings, name) or named.get(index, "section %s" % _name(sections, index))
                symbols.append((shown, info & 15, named.get(index, str(index)), value, size))
    relocations = {}
    for section in sections:
        if section.kind == SHT_RELA and section.info in named:
            found = []
            for at in range(0, len(section.data), 24):
                where, info, addend = struct.unpack_from("<QQq", section.data, at)
                found.append((where, info & 0xFFFFFFFF, symbols[info >> 32][0], addend))
            relocations[named[section.info]] = found
    return Loaded(
        {name: sections[index].data for index, name in named.items()},
        relocations,
        sorted(
            (s[0], s[2], s[3], s[4])
            for s in symbols
            if s[1] not in (STT_SECTION, STT_FILE) and not (s[2].isdigit() and s[2] != "0")
        ),
        len(data),
        sum(len(s.data) for s in sections if ".debug" in s.name),
    )


def _name(sections: List[Section], index: int) -> str:
    return sections[index].name if index < len(sections) else str(index)


# An address of the process in a text: of a function that was generated, or of an object that is a constant.
_IN_TEXT = r"0x[0-9a-f]{6,}|(?:7[ef]|5[4-6])[0-9a-f]{10}|(?<![0-9])(?:8[5-9]|9[0-9]|1[0-4][0-9])[0-9]{12}(?![0-9])"


def masked_name(name: str) -> str:
    # LLVM numbers constants of one name, and the name is an address that may be used twice.
    return re.sub(r"(picklebuf\.ADDRESS)\.\d+$", r"\1", re.sub(_IN_TEXT, "ADDRESS", name))


def _is_address(value: int) -> bool:
    return 0x5000_0000_0000 <= value < 0x8000_0000_0000 or 0x100_0000 <= value < 0x1_0000_0000


def compare(one: Loaded, two: Loaded) -> Tuple[List[str], int]:
    """What differs, and how many addresses of the process were passed over."""
    different: List[str] = []
    masked = 0
    if sorted(one.sections) != sorted(two.sections):
        return ["sections %s and %s" % (sorted(one.sections), sorted(two.sections))], 0
    for name, bytes_one in one.sections.items():
        count = compare_bytes(bytes_one, two.sections[name])
        if count is None:
            different.append("%s: %s" % (name, _first_difference(bytes_one, two.sections[name])))
        else:
            masked += count
    if _masked_relocations(one) != _masked_relocations(two):
        different.append("relocations")
    if [(masked_name(s[0]),) + s[1:] for s in one.symbols] != [(masked_name(s[0]),) + s[1:] for s in two.symbols]:
        # Their order may depend on an address in a name.
        def key(loaded):
            return sorted((masked_name(s[0]),) + s[1:] for s in loaded.symbols)

        if key(one) != key(two):
            pair = next(pair for pair in zip(key(one), key(two)) if pair[0] != pair[1])
            different.append("symbols, first %s and %s" % pair)
    return different, masked


def _first_difference(one: bytes, two: bytes) -> str:
    at = next((at for at, pair in enumerate(zip(one, two)) if pair[0] != pair[1]), min(len(one), len(two)))
    around = slice(max(at - 24, 0), at + 24)
    return "%d and %d bytes, at %d %r and %r" % (len(one), len(two), at, one[around], two[around])


def _masked_relocations(loaded: Loaded) -> Dict[str, List[Tuple[int, int, str, int]]]:
    return {
        section: [(where, kind, masked_name(name), addend) for where, kind, name, addend in found]
        for section, found in loaded.relocations.items()
    }


def compare_bytes(one: bytes, two: bytes):
    """How many addresses differ; `None` where anything else does."""
    if one == two:
        return 0
    if len(one) != len(two):
        return None
    masked, at = 0, 0
    while at < len(one):
        if one[at] == two[at]:
            at += 1
            continue
        after = _after_address(one, two, at)
        if after is None:
            return None
        masked, at = masked + 1, after
    return masked


def _after_address(one: bytes, two: bytes, at: int):
    """The end of the address that the byte is a part of: eight bytes of code or data, or digits in a text."""
    for start in range(at, max(at - 8, -1), -1):
        if start + 8 <= len(one):
            values = [int.from_bytes(data[start : start + 8], "little") for data in (one, two)]
            if all(_is_address(value) for value in values):
                return start + 8
    ends = []
    for data in (one, two):
        found = (m.end() for m in re.finditer(_IN_TEXT.encode(), data) if m.start() <= at < m.end())
        ends.append(next(found, None))
    return ends[0] if ends[0] == ends[1] else None
