"""The debug metadata of one LLVM module: line tables, and nothing about variables and types.

LLVM's names for it (`llvm/docs/SourceLevelDebugging.rst`): a compile unit, files, a subprogram for each function, and for each
instruction a location in one of them. With `LineTablesOnly` inlined calls are still described.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Optional, Set, Tuple

from llvmlite import ir
from numba.core import config

from . import sources

# llvm::DICompileUnit::DebugEmissionKind
_LINE_TABLES_ONLY = 2
# llvm::Module::ModFlagBehavior
_WARNING = 2
_DWARF_VERSION = 4
_DEBUG_INFO_VERSION = 3

_LAST_LINE = 0x7FFF_FFFF

_ATTRIBUTE = "_jitlisten_lines"


class ModuleLines:
    """Writes debug metadata into an `llvmlite.ir.Module`."""

    def __init__(self, module: Any, path: str, optimized: bool) -> None:
        self._module = module
        self._optimized = optimized
        self._files: Dict[str, Any] = {}
        self._locations: Dict[Tuple[Any, int], Any] = {}
        self._scopes: Dict[Tuple[Any, str], Any] = {}
        self._described: Set[Tuple[str, str, str, int]] = set()
        self._hashes = ""
        self._unit: Any = None
        self._unit = self._write_unit(path)
        if self._hashes:
            self._set_flags(self._unit)
        self._type = module.add_debug_info("DISubroutineType", {"types": module.add_metadata([])})

    def _write_unit(self, path: str) -> Any:
        unit = self._module.add_debug_info(
            "DICompileUnit",
            {
                "language": ir.DIToken("DW_LANG_C_plus_plus"),
                "file": self._file(path),
                "producer": "Numba, jitlisten",
                "runtimeVersion": 0,
                "isOptimized": self._optimized,
                "emissionKind": _LINE_TABLES_ONLY,
                # Without it a function that inlines nothing has lines and no name: py-spy then shows an address.
                "debugInfoForProfiling": True,
            },
            is_distinct=True,
        )
        self._named("llvm.dbg.cu").add(unit)
        flags = self._named("llvm.module.flags")
        int32 = ir.IntType(32)
        for key, value in (("Dwarf Version", _DWARF_VERSION), ("Debug Info Version", _DEBUG_INFO_VERSION)):
            flag = self._module.add_metadata([int32(_WARNING), key, int32(value)])
            if flag not in flags.operands:
                flags.add(flag)
        return unit

    def _named(self, name: str) -> Any:
        try:
            return self._module.get_named_metadata(name)
        except KeyError:
            return self._module.add_named_metadata(name)

    def _file(self, path: str) -> Any:
        found = self._files.get(path)
        if found is None:
            # What is no file (`<string>`) has no directory.
            directory = "" if path.startswith("<") else os.path.dirname(path)
            name = path if path.startswith("<") else os.path.basename(path)
            file = {"directory": _text(directory), "filename": _text(name)}
            found = self._module.add_debug_info("DIFile", file)
            self._files[path] = found
            self._note_hash(path)
        return found

    def _note_hash(self, path: str) -> None:
        """The hash of a source, by which a report sees that the file is another one by now. DWARF 4 has no field for it; LLVM
        writes the flags of a compiler behind its name."""
        digest = sources.digest(path)
        if digest is None:
            return
        self._hashes += "jitlisten-source sha256:%s %s\n" % (digest, _text(path))
        if self._unit is not None:
            self._set_flags(self._unit)

    def _set_flags(self, unit: Any) -> None:
        others = tuple(operand for operand in unit.operands if operand[0] != "flags")
        unit.operands = others + (("flags", self._hashes),)
        unit._clear_string_cache()

    def subprogram(self, function: Any, name: str, linkage: str, path: str, line: int) -> Any:
        """Describes a function, by attaching what it returns to it. `linkage` is what most tools show, if it is not empty."""
        file = self._file(path)
        # llvmlite writes what is equal once, "distinct" or not, and LLVM refuses one description for two functions.
        if (name, linkage, path, line) in self._described:
            linkage = function.name
        self._described.add((name, linkage, path, line))
        operands = {
            "name": _text(name),
            "scope": file,
            "file": file,
            "line": max(line, 0),
            "scopeLine": max(line, 0),
            "type": self._type,
            "isLocal": False,
            "isDefinition": True,
            "isOptimized": self._optimized,
            "unit": self._unit,
        }
        if linkage:
            operands["linkageName"] = _text(linkage)
        described = self._module.add_debug_info("DISubprogram", operands, is_distinct=True)
        function.set_metadata("dbg", described)
        return described

    def scope(self, subprogram: Any, path: str) -> Any:
        """For lines of another file than the function's."""
        key = (subprogram, path)
        found = self._scopes.get(key)
        if found is None:
            found = self._module.add_debug_info(
                "DILexicalBlockFile", {"scope": subprogram, "file": self._file(path), "discriminator": 0}
            )
            self._scopes[key] = found
        return found

    def location(self, scope: Any, line: int) -> Any:
        """A line; 0 where there is none."""
        # Numba's unknown location has line -1.
        line = line if 0 < line <= _LAST_LINE else 0
        key = (scope, line)
        found = self._locations.get(key)
        if found is None:
            column = 1 if line else 0
            found = self._module.add_debug_info("DILocation", {"line": line, "column": column, "scope": scope})
            self._locations[key] = found
        return found


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


def strip(module: Any) -> None:
    """Takes everything out again: half a description is worse than none, because LLVM may refuse it."""
    module.namedmetadata.pop("llvm.dbg.cu", None)
    for value in module.metadata:
        # Other metadata refers to its neighbours by number, so each node stays, with nothing in it.
        if isinstance(value, ir.DIValue):
            value.kind, value.is_distinct = "DIFile", False
            value.operands = (("directory", ""), ("filename", ""))
            value._clear_string_cache()
    for function in module.functions:
        function.metadata.pop("dbg", None)
        for block in function.blocks:
            for instruction in block.instructions:
                instruction.metadata.pop("dbg", None)
                instruction._clear_string_cache()


def _text(text: str) -> str:
    """Undecodable bytes of a file's name cannot be written as they are."""
    return text.encode("utf-8", "replace").decode("utf-8")
