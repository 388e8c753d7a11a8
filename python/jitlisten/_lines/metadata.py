"""The debug metadata of one LLVM module: line tables, and nothing about variables and types.

LLVM's names for it (`llvm/docs/SourceLevelDebugging.rst`): a compile unit, files, a subprogram for each function, and
for each instruction a location in one of them. With `LineTablesOnly` inlined calls are still described.

They are in the text of a module only while it is handed to LLVM (`written`). At any other time an instruction, a
function and a module have the text that they have without lines: Numba puts it into messages.

The nodes are written as text here: llvmlite's own compare and hash whole chains of what they refer to, for each
location. And they are written in front of the functions: LLVM's parser keeps a list of the uses of each node that it
has not read yet.
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
# Far from llvmlite's, so that those are what they would be without ours. Not further: LLVM reads it behind each
# instruction.
_FIRST_NUMBER = 10000
# No name that LLVM has.
_EARLY = "\0jitlisten"


_BEHIND = ", !dbg "


class Node(str):
    """The text that follows an instruction with this location or function: `, !dbg !10005`.

    It has of `llvmlite.ir.values.NamedValue` what an instruction needs to refer to it.
    """

    __slots__ = ()

    def get_reference(self) -> str:
        return self[len(_BEHIND) :]


class _Early:
    """Among the globals of a module."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


class ModuleLines:
    """Writes debug metadata into an `llvmlite.ir.Module`."""

    def __init__(self, module: Any, path: str, optimized: bool) -> None:
        self._module = module
        self._optimized = optimized
        self._files: Dict[str, str] = {}
        self._locations: Dict[Tuple[str, int, str], Node] = {}
        self._scopes: Dict[Tuple[str, str], Node] = {}
        self._inlined: Dict[Tuple[str, str, int], Node] = {}
        # Of each function that is lowered, the location of its `def`.
        self.heads: Dict[str, Node] = {}
        # Whether the text of the module has all of this now.
        self.is_written = False
        self._hashes = ""
        self._main_file = ""
        # By number, from `_FIRST_NUMBER` on. The first one is the compile unit.
        self._texts: List[str] = []
        self._unit = self.add("").get_reference()
        self._main_file = self._file(path)
        self._write_unit()
        self._type = self.add("!DISubroutineType(types: null)").get_reference()

    def add(self, text: str) -> Node:
        """A new node."""
        self._texts.append(text)
        return Node("%s!%d" % (_BEHIND, _FIRST_NUMBER + len(self._texts) - 1))

    def _write_unit(self) -> None:
        # debugInfoForProfiling: without it a function that inlines nothing has lines and no name; py-spy then shows an
        # address.
        self._texts[0] = (
            'distinct !DICompileUnit(language: DW_LANG_C_plus_plus, file: %s, producer: "Numba, jitlisten",'
            ' isOptimized: %s, flags: "%s", runtimeVersion: 0, emissionKind: LineTablesOnly, debugInfoForProfiling:'
            ' true)' % (self._main_file, "true" if self._optimized else "false", _text(self._hashes))
        )

    def text(self) -> str:
        """All of it, for the module's text."""
        named = self._module.namedmetadata
        flags = named.get("llvm.module.flags")
        present = "\n".join(str(flag) for flag in flags.operands) if flags is not None else ""
        ours = [
            self.add('!{ i32 %d, !"%s", i32 %d }' % (_WARNING, key, value))
            for key, value in _FLAGS
            if '"%s"' % key not in present
        ]
        lines = ["!llvm.dbg.cu = !{ %s }" % self._unit]
        if flags is None:
            lines.append("!llvm.module.flags = !{ %s }" % ", ".join(flag.get_reference() for flag in ours))
        else:
            flags.operands.extend(ours)
        return "\n".join(
            lines + ["!%d = %s" % (number, text) for number, text in enumerate(self._texts, _FIRST_NUMBER)]
        )

    def _file(self, path: str) -> str:
        found = self._files.get(path)
        if found is None:
            # What is no file (`<string>`) has no directory.
            directory, name = ("", path) if path.startswith("<") else os.path.split(path)
            text = '!DIFile(filename: "%s", directory: "%s")' % (_text(name), _text(directory))
            found = self._files[path] = self.add(text).get_reference()
            self._note_hash(path)
        return found

    def _note_hash(self, path: str) -> None:
        """The hash of a source, by which a report sees that the file is another one by now. DWARF 4 has no field for
        it; LLVM writes the flags of a compiler behind its name."""
        digest = sources.digest(path)
        if digest is not None:
            self._hashes += "jitlisten-source sha256:%s %s\n" % (digest, path)
            if self._main_file:
                self._write_unit()

    def _subprogram(self, name: str, linkage: str, path: str, line: int) -> Node:
        file = self._file(path)
        line = line if 0 < line <= _LAST_LINE else 0
        more = ', linkageName: "%s"' % _text(linkage) if linkage else ""
        flags = "DISPFlagDefinition | DISPFlagOptimized" if self._optimized else "DISPFlagDefinition"
        return self.add(
            'distinct !DISubprogram(name: "%s"%s, scope: %s, file: %s, line: %d, type: %s, scopeLine: %d, spFlags: %s,'
            ' unit: %s)' % (_text(name), more, file, file, line, self._type, line, flags, self._unit)
        )

    def subprogram(self, function: Any, name: str, linkage: str, path: str, line: int) -> Node:
        """Describes a function, by attaching what it returns to it. `linkage` is what most tools show, if it is not
        empty."""
        described = self._subprogram(name, linkage, path, line)
        function.set_metadata("dbg", described)
        return described

    def inlined(self, name: str, linkage: str, path: str, line: int) -> Node:
        """Describes a function whose statements are in others only."""
        key = (linkage or name, path, line)
        found = self._inlined.get(key)
        if found is None:
            found = self._inlined[key] = self._subprogram(name, linkage, path, line)
        return found

    def scope(self, subprogram: Node, path: str) -> Node:
        """For lines of another file than the function's."""
        scope = subprogram.get_reference()
        found = self._scopes.get((scope, path))
        if found is None:
            text = "!DILexicalBlockFile(scope: %s, file: %s, discriminator: 0)" % (scope, self._file(path))
            found = self._scopes[scope, path] = self.add(text)
        return found

    def location(self, scope: Node, line: int, call: Optional[Node] = None) -> Node:
        """A line; 0 where there is none. `call` is where the statement is inlined."""
        # Numba's unknown location has line -1.
        line = line if 0 < line <= _LAST_LINE else 0
        inlined_at = ", inlinedAt: " + call.get_reference() if call is not None else ""
        key = (scope.get_reference(), line, inlined_at)
        found = self._locations.get(key)
        if found is None:
            text = "!DILocation(line: %d, scope: %s%s)" % (line, key[0], inlined_at)
            found = self._locations[key] = self.add(text)
        return found

    def call(self, location: Node) -> Node:
        """The place of one call that is inlined: two of one line stay two."""
        return self.add("distinct " + self._texts[int(location.get_reference()[1:]) - _FIRST_NUMBER])


def lines_of(module: Any) -> Optional[ModuleLines]:
    """What has been written into a module so far."""
    found = getattr(module, _ATTRIBUTE, None)
    return found if isinstance(found, ModuleLines) else None


def begin(module: Any, path: str) -> ModuleLines:
    """The debug metadata of a module; a new compile unit the first time."""
    found = lines_of(module)
    if found is None:
        found = ModuleLines(module, path, config.OPT != 0)
        setattr(module, _ATTRIBUTE, found)
    return found


@contextmanager
def written(module: Any) -> Iterator[None]:
    """While a complete module is handed to LLVM."""
    lines = lines_of(module)
    assert lines is not None
    module.globals[_EARLY] = _Early(lines.text())
    module.globals.move_to_end(_EARLY, last=False)
    lines.is_written = True
    try:
        yield
    finally:
        lines.is_written = False
        del module.globals[_EARLY]
        flags = module.namedmetadata.get("llvm.module.flags")
        if flags is not None:
            flags.operands[:] = [flag for flag in flags.operands if not isinstance(flag, Node)]


def _is_written(module: Any) -> bool:
    lines = lines_of(module)
    return lines is not None and lines.is_written


def text_of_metadata(original: Callable[..., str]) -> Callable[..., str]:
    """Replaces `llvmlite.ir._utils._HasMetadata._stringify_metadata`, which is called for each instruction and
    function. `text_of_block` writes the locations of instructions."""

    def _stringify_metadata(self: Any, leading_comma: bool = False) -> str:
        held = self.metadata
        if type(held.get("dbg")) is not Node or (isinstance(self, Function) and _is_written(self.parent)):
            return original(self, leading_comma)
        if len(held) == 1:
            return ""
        others = _HasMetadata()
        others.metadata = {name: node for name, node in held.items() if name != "dbg"}
        return original(others, leading_comma)

    return _stringify_metadata


def text_of_block(original: Callable[[Any, List[str]], None]) -> Callable[[Any, List[str]], None]:
    """Replaces `llvmlite.ir.Block.descr`, which makes one text of each instruction."""

    def descr(self: Any, texts: List[str]) -> None:
        original(self, texts)
        if _is_written(self.parent.parent):
            for number, instruction in enumerate(self.instructions, len(texts) - len(self.instructions)):
                location = instruction.metadata.get("dbg")
                if type(location) is Node:
                    texts[number] = texts[number][:-1] + location + "\n"

    return descr


@contextmanager
def detached(module: Any) -> Iterator[None]:
    """The module as if nothing had been added to it. Numba pickles values of a module that is being built, and the
    module with them."""
    lines = module.__dict__.pop(_ATTRIBUTE)
    taken = [(holder.metadata, holder.metadata.pop("dbg")) for holder in _described(module)]
    try:
        yield
    finally:
        for metadata, node in taken:
            metadata["dbg"] = node
        setattr(module, _ATTRIBUTE, lines)


def _described(module: Any) -> Iterator[Any]:
    """Functions and instructions with a description of ours."""
    for function in module.functions:
        instructions = (instruction for block in function.blocks for instruction in block.instructions)
        for holder in itertools.chain([function], instructions):
            if isinstance(holder.metadata.get("dbg"), Node):
                yield holder


_UNWRITABLE = re.compile(rb'[^ !#-\[\]-~]')


def _text(text: str) -> str:
    """As it stands between quotation marks. Undecodable bytes of a file's name cannot be written as they are."""
    data = _UNWRITABLE.sub(lambda found: b"\\%02x" % ord(found[0]), text.encode("utf-8", "replace"))
    return data.decode("ascii")
