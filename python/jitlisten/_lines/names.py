"""What a function is called, and where functions belong whose text is generated.

    DW_AT_name           inner                                 the qualified name, as in a traceback
    DW_AT_linkage_name   __main__.inner(float64) [v2]          as the native library names the symbol; perf, addr2line,
                                                               llvm-symbolizer and py-spy show this one of inlined calls

The linkage name is not the symbol: that one takes a demangler that knows Numba, and tools do not. `[v2]` tells
compilations of one function apart.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, Optional

from . import stencils

GENERATED = "<string>"
#: The kind of function that has the user's file, and line numbers that mean nothing there.
ARRAY_EXPRESSION = "array expression"

_PRANGE = "__numba_parfor_gufunc"
_STENCIL = "__numba_stencil_"
_ARRAY_EXPRESSION = "__numba_array_expr_"
_JITCLASS = ("ctor", "accessor", "mutator", "method")

# Of functions and classes among the arguments' types: others in each process.
_ADDRESS = re.compile("(?: at 0x|#)[0-9a-f]{8,}")

# Names are a third of what lines add to an object.
_LONGEST_ARGUMENTS = 100


class Origin(NamedTuple):
    """A statement that Numba makes a function of, and the function that contains it."""

    path: str
    line: int
    function: str


class Described(NamedTuple):
    """A generated function: for a statement, a loop or a class of the user's."""

    kind: str
    # `None`: the kind, file and line.
    name: Optional[str]
    path: str
    line: int
    # The function, or the module of the class.
    owner: str


def generated(lowerer: Any, loop: Optional[Origin], statement: Optional[Origin]) -> Optional[Described]:
    """What a generated function was made for, if that is known. `loop` is the parallel loop whose kernel is being made,
    `statement` the one that is being lowered in this thread."""
    name = str(getattr(lowerer.func_ir.func_id, "func_name", ""))
    if name.startswith(_ARRAY_EXPRESSION) and statement is not None:
        return Described(ARRAY_EXPRESSION, None, *statement)
    if lowerer.func_ir.loc.filename != GENERATED:
        return None
    if name.startswith(_PRANGE) and loop is not None:
        return Described("prange kernel", None, *loop)
    if name.startswith(_STENCIL):
        return Described("stencil", None, *stencils.settle(lowerer.func_ir, GENERATED), "")
    if name in _JITCLASS:
        return _of_class(lowerer, name)
    return None


def qualified(lowerer: Any) -> str:
    """Module and qualified name of the function that is lowered."""
    description = lowerer.fndesc
    return "%s.%s" % (description.modname, description.qualname)


def is_numbas(lowerer: Any) -> bool:
    """Whether this is one of the many small functions of Numba's own. One name is enough for those: with its module."""
    return bool(lowerer.fndesc.modname.startswith("numba."))


def linkage(lowerer: Any, function: Any, known: Optional[Described], shown: str) -> str:
    """The name with everything that distinguishes it; empty where there is no more to say."""
    description = lowerer.fndesc
    if known is None and is_numbas(lowerer):
        return ""
    uid = getattr(description, "uid", None)
    mark = "" if uid is None else " [v%d]" % uid
    if known is not None and known.name is None:
        return shown + (" in " + known.owner if known.owner else "") + mark
    name = "%s.%s" % (known.owner, shown) if known is not None else qualified(lowerer)
    prefix = "finalize::" if function.name.startswith("finalize_") else ""
    # The parts of a generator are functions of their own.
    suffix = "" if prefix or function.name == description.llvm_func_name else ".next"
    arguments = _ADDRESS.sub("", ", ".join(map(str, description.argtypes)))
    if len(arguments) > _LONGEST_ARGUMENTS:
        arguments = arguments[:_LONGEST_ARGUMENTS] + "..."
    return "%s%s%s(%s)%s" % (prefix, name, suffix, arguments, mark)


def _of_class(lowerer: Any, kind: str) -> Optional[Described]:
    """`def ctor(x): return C(x)`, and what Python calls for each method and attribute of a jitclass."""
    description = lowerer.fndesc
    instance = description.restype if kind == "ctor" else next(iter(description.argtypes), None)
    class_type = getattr(instance, "class_type", None)
    # A function of that name, from a text of the user's.
    if instance is None or class_type is None or "__init__" not in getattr(instance, "methods", {}):
        return None
    attribute = "" if kind == "ctor" else _attribute(lowerer)
    methods = instance.methods
    accessors = getattr(instance, "jit_props", {}).get(attribute, {})
    dispatcher = accessors.get("set" if kind == "mutator" else "get")
    function = methods.get(attribute) or getattr(dispatcher, "py_func", None) or methods["__init__"]
    name = ".".join(part for part in (class_type.class_name, attribute, kind) if part)
    return Described(kind, name, function.__code__.co_filename, function.__code__.co_firstlineno, function.__module__)


def _attribute(lowerer: Any) -> str:
    for _, block in sorted(lowerer.func_ir.blocks.items()):
        for inst in block.body:
            for holder in (inst, getattr(inst, "value", None)):
                attribute = getattr(holder, "attr", None)
                if isinstance(attribute, str):
                    return attribute
    return ""
