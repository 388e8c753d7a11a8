"""Reads the loaded part of an object file into a form that can be compared.

Supports 64-bit little-endian ELF only. Symbols are compared by name, because debug sections shift the symbol indices.
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


class LoadedObject(NamedTuple):
    """Loaded sections by name (numbered if a name occurs more than once), their relocations, and the symbols."""

    sections: Dict[str, bytes]
    relocations: Dict[str, List[Tuple[int, int, str, int]]]
    symbols: List[Tuple[str, str, int, int]]
    # Sizes in bytes of the whole file and of its line and debug information.
    size: int
    debug_size: int


def _string_at(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode("utf-8", "replace")


def _read_sections(data: bytes) -> List[Section]:
    assert data[:6] == b"\x7fELF\x02\x01", data[:6]
    (offset,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, offset + i * size) for i in range(count)]
    name_table = data[headers[names_index][4] : headers[names_index][4] + headers[names_index][5]]
    return [
        Section(
            _string_at(name_table, header[0]),
            header[1],
            header[2],
            b"" if header[1] == SHT_NOBITS else data[header[4] : header[4] + header[5]],
            header[6],
            header[7],
        )
        for header in headers
    ]


def read(data: bytes) -> LoadedObject:
    sections = _read_sections(data)
    section_labels, occurrences = {}, {}
    for index, section in enumerate(sections):
        if section.flags & SHF_ALLOC:
            occurrences[section.name] = occurrences.get(section.name, 0) + 1
            section_labels[index] = "%s#%d" % (section.name, occurrences[section.name])
    symbols = []
    for section in sections:
        if section.kind == 2:
            strings = sections[section.link].data
            for offset in range(0, len(section.data), 24):
                name, info, _, index, value, size = struct.unpack_from("<IBBHQQ", section.data, offset)
                symbol_name = _string_at(strings, name) or section_labels.get(
                    index, "section %s" % _section_name(sections, index)
                )
                symbols.append((symbol_name, info & 15, section_labels.get(index, str(index)), value, size))
    relocations = {}
    for section in sections:
        if section.kind == SHT_RELA and section.info in section_labels:
            entries = []
            for offset in range(0, len(section.data), 24):
                address, info, addend = struct.unpack_from("<QQq", section.data, offset)
                entries.append((address, info & 0xFFFFFFFF, symbols[info >> 32][0], addend))
            relocations[section_labels[section.info]] = entries
    return LoadedObject(
        {name: sections[index].data for index, name in section_labels.items()},
        relocations,
        sorted(
            (symbol[0], symbol[2], symbol[3], symbol[4])
            for symbol in symbols
            if symbol[1] not in (STT_SECTION, STT_FILE) and not (symbol[2].isdigit() and symbol[2] != "0")
        ),
        len(data),
        sum(len(section.data) for section in sections if ".debug" in section.name),
    )


def _section_name(sections: List[Section], index: int) -> str:
    return sections[index].name if index < len(sections) else str(index)


# Matches the address of an object in a string, either that of a generated function or that of a constant.
_ADDRESS_PATTERN = (
    r"(?<=numba\.dynamic\.globals\.)[0-9a-f]+|0x[0-9a-f]{6,}|(?:7[ef]|5[4-6])[0-9a-f]{10}"
    r"|(?<![0-9])(?:8[5-9]|9[0-9]|1[0-4][0-9])[0-9]{12}(?![0-9])"
)


def masked_name(name: str) -> str:
    # LLVM numbers constants that have equal names, and an address in a name may have been reused.
    return re.sub(r"(picklebuf\.ADDRESS)\.\d+$", r"\1", re.sub(_ADDRESS_PATTERN, "ADDRESS", name))


def _is_address(value: int) -> bool:
    return 0x5000_0000_0000 <= value < 0x8000_0000_0000 or 0x100_0000 <= value < 0x1_0000_0000


def compare(first: LoadedObject, second: LoadedObject) -> Tuple[List[str], int]:
    """Returns the differences between two objects, and the number of process addresses that were ignored."""
    differences: List[str] = []
    address_count = 0
    if sorted(first.sections) != sorted(second.sections):
        return ["sections %s and %s" % (sorted(first.sections), sorted(second.sections))], 0
    for name, first_bytes in first.sections.items():
        count = compare_bytes(first_bytes, second.sections[name])
        if count is None:
            differences.append("%s: %s" % (name, _first_difference(first_bytes, second.sections[name])))
        else:
            address_count += count
    if _masked_relocations(first) != _masked_relocations(second):
        differences.append("relocations")
    if [(masked_name(symbol[0]),) + symbol[1:] for symbol in first.symbols] != [
        (masked_name(symbol[0]),) + symbol[1:] for symbol in second.symbols
    ]:
        # The order of symbols may depend on an address in their names.
        def sorted_symbols(loaded):
            return sorted((masked_name(symbol[0]),) + symbol[1:] for symbol in loaded.symbols)

        if sorted_symbols(first) != sorted_symbols(second):
            mismatch = next(
                mismatch
                for mismatch in zip(sorted_symbols(first), sorted_symbols(second))
                if mismatch[0] != mismatch[1]
            )
            differences.append("symbols, first %s and %s" % mismatch)
    return differences, address_count


def _first_difference(first: bytes, second: bytes) -> str:
    offset = next(
        (offset for offset, pair in enumerate(zip(first, second)) if pair[0] != pair[1]), min(len(first), len(second))
    )
    context = slice(max(offset - 24, 0), offset + 24)
    return "%d and %d bytes, at %d %r and %r" % (len(first), len(second), offset, first[context], second[context])


def _masked_relocations(loaded: LoadedObject) -> Dict[str, List[Tuple[int, int, str, int]]]:
    return {
        section: [(address, kind, masked_name(name), addend) for address, kind, name, addend in entries]
        for section, entries in loaded.relocations.items()
    }


def compare_bytes(first: bytes, second: bytes):
    """Returns the number of differing addresses, or `None` if anything else differs."""
    if first == second:
        return 0
    if len(first) != len(second):
        return None
    address_count, offset = 0, 0
    while offset < len(first):
        if first[offset] == second[offset]:
            offset += 1
            continue
        address_end = _find_address_end(first, second, offset)
        if address_end is None:
            return None
        address_count, offset = address_count + 1, address_end
    return address_count


def _find_address_end(first: bytes, second: bytes, offset: int):
    """Returns the end of the address that contains this byte. An address is eight bytes of code or data, or digits in a
    string."""
    for start in range(offset, max(offset - 8, -1), -1):
        if start + 8 <= len(first):
            values = [int.from_bytes(data[start : start + 8], "little") for data in (first, second)]
            if all(_is_address(value) for value in values):
                return start + 8
    ends = []
    for data in (first, second):
        match_ends = (
            match.end()
            for match in re.finditer(_ADDRESS_PATTERN.encode(), data)
            if match.start() <= offset < match.end()
        )
        ends.append(next(match_ends, None))
    return ends[0] if ends[0] == ends[1] else None
