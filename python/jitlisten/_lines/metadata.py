"""Debug metadata of one LLVM module: line tables, without variables and types.

In LLVM's terms (`llvm/docs/SourceLevelDebugging.rst`): a compile unit, files, a subprogram for each function, and a
location in a subprogram for each instruction. `LineTablesOnly` still describes inlined calls.

The metadata is part of a module's text only while the module is passed to LLVM (`written`). At any other time,
instructions, functions and modules have the same text as without lines, because Numba puts it into messages.

Nodes are formatted as text here, because llvmlite's own nodes compare and hash whole chains of references for each
location. They precede the functions, because LLVM's parser keeps a list of the uses of each node that it has not read
yet.
"""

from __future__ import annotations

import itertools
import os
import re
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from llvmlite.ir import Function
from llvmlite.ir._utils import _HasMetadata
from numba.core import config

from . import sources

# llvm::Module::ModFlagBehavior
_WARNING = 2
_FLAGS = (("Dwarf Version", 4), ("Debug Info Version", 3))

_LAST_LINE = 0x7FFF_FFFF

_ATTRIBUTE = "_jitlisten_lines"
# Far above llvmlite's numbers, which therefore do not change. Small, because LLVM parses it after each instruction.
_FIRST_NUMBER = 10000
# Not a valid name in LLVM.
_METADATA_KEY = "\0jitlisten"


_NODE_PREFIX = ", !dbg "


class Node(str):
    """Text that follows an instruction or a function with this metadata: `, !dbg !10005`.

    It implements the part of `llvmlite.ir.values.NamedValue` that an instruction needs to refer to it.
    """

    __slots__ = ()

    def get_reference(self) -> str:
        return self[len(_NODE_PREFIX) :]


class _LiteralText:
    """Literal text among the globals of a module."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


class ModuleLines:
    """Debug metadata of an `llvmlite.ir.Module`."""

    def __init__(self, module: Any, path: str, optimized: bool) -> None:
        self._module = module
        self._optimized = optimized
        self._files: Dict[str, str] = {}
        self._locations: Dict[Tuple[str, int, str], Node] = {}
        self._scopes: Dict[Tuple[str, str], Node] = {}
        self._inlined: Dict[Tuple[str, str, int], Node] = {}
        # Location of the `def` of each lowered function, by name.
        self.heads: Dict[str, Node] = {}
        # True while the text of the module contains the metadata.
        self.is_written = False
        self._hashes = ""
        self._main_file = ""
        # Definitions of the nodes, numbered from `_FIRST_NUMBER`. The first one is the compile unit.
        self._texts: List[str] = []
        self._unit = self.add("").get_reference()
        self._main_file = self._file(path)
        self._write_unit()
        self._type = self.add("!DISubroutineType(types: null)").get_reference()

    def add(self, text: str) -> Node:
        """Adds a node."""
        self._texts.append(text)
        return Node("%s!%d" % (_NODE_PREFIX, _FIRST_NUMBER + len(self._texts) - 1))

    def _write_unit(self) -> None:
        # Without debugInfoForProfiling, a function that inlines nothing has lines but no name, and py-spy shows an
        # address.
        self._texts[0] = (
            'distinct !DICompileUnit(language: DW_LANG_C_plus_plus, file: %s, producer: "Numba, jitlisten",'
            ' isOptimized: %s, flags: "%s", runtimeVersion: 0, emissionKind: LineTablesOnly, debugInfoForProfiling:'
            " true)" % (self._main_file, "true" if self._optimized else "false", _escape(self._hashes))
        )

    def text(self) -> str:
        """Returns all metadata in the form in which it appears in the module's text."""
        named_metadata = self._module.namedmetadata
        flags = named_metadata.get("llvm.module.flags")
        present = "\n".join(str(flag) for flag in flags.operands) if flags is not None else ""
        our_flags = [
            self.add('!{ i32 %d, !"%s", i32 %d }' % (_WARNING, key, value))
            for key, value in _FLAGS
            if '"%s"' % key not in present
        ]
        lines = ["!llvm.dbg.cu = !{ %s }" % self._unit]
        if flags is None:
            lines.append("!llvm.module.flags = !{ %s }" % ", ".join(flag.get_reference() for flag in our_flags))
        else:
            flags.operands.extend(our_flags)
        return "\n".join(
            lines + ["!%d = %s" % (number, text) for number, text in enumerate(self._texts, _FIRST_NUMBER)]
        )

    def _file(self, path: str) -> str:
        node = self._files.get(path)
        if node is None:
            # A name that is not a file (`<string>`) has no directory.
            directory, name = ("", path) if path.startswith("<") else os.path.split(path)
            text = '!DIFile(filename: "%s", directory: "%s")' % (_escape(name), _escape(directory))
            node = self._files[path] = self.add(text).get_reference()
            self._add_hash(path)
        return node

    def _add_hash(self, path: str) -> None:
        """Adds the hash of a source, with which a report detects that the file has changed. DWARF 4 has no field for
        it; LLVM appends the compiler flags to the name of the producer."""
        digest = sources.digest(path)
        if digest is not None:
            self._hashes += "jitlisten-source sha256:%s %s\n" % (digest, path)
            if self._main_file:
                self._write_unit()

    def _subprogram(self, name: str, linkage: str, path: str, line: int) -> Node:
        file = self._file(path)
        line = line if 0 < line <= _LAST_LINE else 0
        linkage_field = ', linkageName: "%s"' % _escape(linkage) if linkage else ""
        flags = "DISPFlagDefinition | DISPFlagOptimized" if self._optimized else "DISPFlagDefinition"
        return self.add(
            'distinct !DISubprogram(name: "%s"%s, scope: %s, file: %s, line: %d, type: %s, scopeLine: %d, spFlags: %s,'
            " unit: %s)" % (_escape(name), linkage_field, file, file, line, self._type, line, flags, self._unit)
        )

    def subprogram(self, function: Any, name: str, linkage: str, path: str, line: int) -> Node:
        """Describes a function and attaches the description to it. Most tools show `linkage`, if it is not empty."""
        node = self._subprogram(name, linkage, path, line)
        function.set_metadata("dbg", node)
        return node

    def inlined(self, name: str, linkage: str, path: str, line: int) -> Node:
        """Describes a function whose statements only occur in other functions."""
        key = (linkage or name, path, line)
        node = self._inlined.get(key)
        if node is None:
            node = self._inlined[key] = self._subprogram(name, linkage, path, line)
        return node

    def scope(self, subprogram: Node, path: str) -> Node:
        """Returns a scope for lines from a file other than the function's."""
        scope = subprogram.get_reference()
        node = self._scopes.get((scope, path))
        if node is None:
            text = "!DILexicalBlockFile(scope: %s, file: %s, discriminator: 0)" % (scope, self._file(path))
            node = self._scopes[scope, path] = self.add(text)
        return node

    def location(self, scope: Node, line: int, call: Optional[Node] = None) -> Node:
        """Returns the location of a line; 0 if the statement has none. `call` is the call site of an inlined
        statement."""
        # Numba's unknown location has line -1.
        line = line if 0 < line <= _LAST_LINE else 0
        inlined_at = ", inlinedAt: " + call.get_reference() if call is not None else ""
        key = (scope.get_reference(), line, inlined_at)
        node = self._locations.get(key)
        if node is None:
            text = "!DILocation(line: %d, scope: %s%s)" % (line, key[0], inlined_at)
            node = self._locations[key] = self.add(text)
        return node

    def call(self, location: Node) -> Node:
        """Describes the call site of an inlined call. Two calls on the same line stay separate."""
        return self.add("distinct " + self._texts[int(location.get_reference()[1:]) - _FIRST_NUMBER])


def lines_of(module: Any) -> Optional[ModuleLines]:
    """Returns the debug metadata of a module, if it has any yet."""
    lines = getattr(module, _ATTRIBUTE, None)
    return lines if isinstance(lines, ModuleLines) else None


def ensure_lines(module: Any, path: str) -> ModuleLines:
    """Returns the debug metadata of a module; creates it on the first call."""
    lines = lines_of(module)
    if lines is None:
        lines = ModuleLines(module, path, config.OPT != 0)
        setattr(module, _ATTRIBUTE, lines)
    return lines


@contextmanager
def written(module: Any) -> Iterator[None]:
    """Context in which a complete module is passed to LLVM."""
    lines = lines_of(module)
    assert lines is not None
    module.globals[_METADATA_KEY] = _LiteralText(lines.text())
    module.globals.move_to_end(_METADATA_KEY, last=False)
    lines.is_written = True
    try:
        yield
    finally:
        lines.is_written = False
        del module.globals[_METADATA_KEY]
        flags = module.namedmetadata.get("llvm.module.flags")
        if flags is not None:
            flags.operands[:] = [flag for flag in flags.operands if not isinstance(flag, Node)]


def _is_written(module: Any) -> bool:
    lines = lines_of(module)
    return lines is not None and lines.is_written


def stringify_metadata(original: Callable[..., str], holder: Any, leading_comma: bool = False) -> str:
    """Formats the metadata of an instruction or a function, around llvmlite's `_HasMetadata._stringify_metadata`.
    `format_block` writes the locations of instructions."""
    own = holder.metadata
    if type(own.get("dbg")) is not Node or (isinstance(holder, Function) and _is_written(holder.parent)):
        return original(holder, leading_comma)
    if len(own) == 1:
        return ""
    other_metadata = _HasMetadata()
    other_metadata.metadata = {name: node for name, node in own.items() if name != "dbg"}
    return original(other_metadata, leading_comma)


def format_block(original: Callable[[Any, List[str]], None], block: Any, texts: List[str]) -> None:
    """Formats the instructions of a block, around llvmlite's `Block.descr`."""
    original(block, texts)
    if _is_written(block.parent.parent):
        for number, instruction in enumerate(block.instructions, len(texts) - len(block.instructions)):
            location = instruction.metadata.get("dbg")
            if type(location) is Node:
                texts[number] = texts[number][:-1] + location + "\n"


@contextmanager
def detached(module: Any) -> Iterator[None]:
    """Context in which a module looks as if nothing had been added to it. Numba pickles values of an unfinished module,
    together with the module."""
    lines = module.__dict__.pop(_ATTRIBUTE)
    removed = [(holder.metadata, holder.metadata.pop("dbg")) for holder in _described(module)]
    try:
        yield
    finally:
        for metadata, node in removed:
            metadata["dbg"] = node
        setattr(module, _ATTRIBUTE, lines)


def _described(module: Any) -> Iterator[Any]:
    """Yields the functions and instructions that carry our metadata."""
    for function in module.functions:
        instructions = (instruction for block in function.blocks for instruction in block.instructions)
        for holder in itertools.chain([function], instructions):
            if isinstance(holder.metadata.get("dbg"), Node):
                yield holder


_ESCAPED_BYTES = re.compile(rb"[^ !#-\[\]-~]")


def _escape(text: str) -> str:
    """Escapes a string for use in quotation marks. Undecodable bytes of a file name are replaced."""
    data = _ESCAPED_BYTES.sub(lambda match: b"\\%02x" % ord(match[0]), text.encode("utf-8", "replace"))
    return data.decode("ascii")
