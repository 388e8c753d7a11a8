"""Names of functions, and the origin of functions whose text is generated.

    DW_AT_name           inner                                 the qualified name, as in a traceback
    DW_AT_linkage_name   __main__.inner(float64) [v2]          the native library's name of the symbol; perf, addr2line,
                                                               llvm-symbolizer and py-spy show it for inlined calls

The linkage name is not the symbol, which only a demangler that knows Numba can read. `[v2]` distinguishes compilations
of one function.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, Optional

from . import stencils

GENERATED = "<string>"
#: Kind of a function with the user's file, but meaningless line numbers.
ARRAY_EXPRESSION = "array expression"

_PRANGE = "__numba_parfor_gufunc"
_STENCIL = "__numba_stencil_"
_ARRAY_EXPRESSION = "__numba_array_expr_"
_JITCLASS = ("ctor", "accessor", "mutator", "method")

# Addresses of functions and classes in the types of arguments. They differ in each process.
_ADDRESS = re.compile("(?: at 0x|#)[0-9a-f]{8,}")

# Names are a third of the size that lines add to an object.
_MAX_ARGUMENT_CHARACTERS = 100


class Origin(NamedTuple):
    """A statement that Numba turns into a function, and the function that contains it."""

    path: str
    line: int
    function: str


class GeneratedFunction(NamedTuple):
    """Function that Numba generates for a statement, a user's loop or class."""

    kind: str
    # `None` if the name is composed of kind, file and line.
    name: Optional[str]
    path: str
    line: int
    # Name of the containing function, or of the module of the class.
    owner: str


def describe_generated(
    lowerer: Any, loop: Optional[Origin], statement: Optional[Origin]
) -> Optional[GeneratedFunction]:
    """Describes a generated function, if its origin is known. `loop` is the parallel loop whose kernel is being
    compiled, `statement` the statement that is being lowered in this thread."""
    name = str(getattr(lowerer.func_ir.func_id, "func_name", ""))
    if name.startswith(_ARRAY_EXPRESSION) and statement is not None:
        return GeneratedFunction(ARRAY_EXPRESSION, None, *statement)
    if lowerer.func_ir.loc.filename != GENERATED:
        return None
    if name.startswith(_PRANGE) and loop is not None:
        return GeneratedFunction("prange kernel", None, *loop)
    if name.startswith(_STENCIL):
        return GeneratedFunction("stencil", None, *stencils.correct_lines(lowerer.func_ir, GENERATED), "")
    if name in _JITCLASS:
        return _describe_jitclass(lowerer, name)
    return None


def qualified_name(lowerer: Any) -> str:
    """Returns module and qualified name of the lowered function."""
    description = lowerer.fndesc
    return "%s.%s" % (description.modname, description.qualname)


def is_internal(lowerer: Any) -> bool:
    """Returns true for Numba's many small internal functions, for which the name with the module is enough."""
    return bool(lowerer.fndesc.modname.startswith("numba."))


def linkage_name(lowerer: Any, function: Any, generated: Optional[GeneratedFunction], display_name: str) -> str:
    """Returns the name with everything that distinguishes this compilation; empty if that adds nothing."""
    description = lowerer.fndesc
    if generated is None and is_internal(lowerer):
        return ""
    uid = getattr(description, "uid", None)
    version_suffix = "" if uid is None else " [v%d]" % uid
    if generated is not None and generated.name is None:
        return display_name + (" in " + generated.owner if generated.owner else "") + version_suffix
    name = "%s.%s" % (generated.owner, display_name) if generated is not None else qualified_name(lowerer)
    prefix = "finalize::" if function.name.startswith("finalize_") else ""
    # The parts of a generator are separate functions.
    suffix = "" if prefix or function.name == description.llvm_func_name else ".next"
    arguments = _ADDRESS.sub("", ", ".join(map(str, description.argtypes)))
    if len(arguments) > _MAX_ARGUMENT_CHARACTERS:
        arguments = arguments[:_MAX_ARGUMENT_CHARACTERS] + "..."
    return "%s%s%s(%s)%s" % (prefix, name, suffix, arguments, version_suffix)


def _describe_jitclass(lowerer: Any, kind: str) -> Optional[GeneratedFunction]:
    """Describes a function of a jitclass: `def ctor(x): return C(x)`, or one that Python calls for a method or
    attribute."""
    description = lowerer.fndesc
    instance = description.restype if kind == "ctor" else next(iter(description.argtypes), None)
    class_type = getattr(instance, "class_type", None)
    # This is a user function with that name, compiled from a string.
    if instance is None or class_type is None or "__init__" not in getattr(instance, "methods", {}):
        return None
    attribute = "" if kind == "ctor" else _find_attribute(lowerer)
    methods = instance.methods
    accessors = getattr(instance, "jit_props", {}).get(attribute, {})
    dispatcher = accessors.get("set" if kind == "mutator" else "get")
    function = methods.get(attribute) or getattr(dispatcher, "py_func", None) or methods["__init__"]
    name = ".".join(part for part in (class_type.class_name, attribute, kind) if part)
    return GeneratedFunction(
        kind, name, function.__code__.co_filename, function.__code__.co_firstlineno, function.__module__
    )


def _find_attribute(lowerer: Any) -> str:
    for _, block in sorted(lowerer.func_ir.blocks.items()):
        for inst in block.body:
            for holder in (inst, getattr(inst, "value", None)):
                attribute = getattr(holder, "attr", None)
                if isinstance(attribute, str):
                    return attribute
    return ""
