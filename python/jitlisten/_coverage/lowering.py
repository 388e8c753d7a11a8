"""Writes the stores of a plan while Numba lowers a function."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Any, Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Tuple

from llvmlite import ir as llvm
from llvmlite.ir import instructions

from numba.core import cgutils, codegen, cpu, ir

from .._lines.locations import place_of
from . import loops, marks, paths, unmeasured
from .marks import Mark
from .patches import STENCILS
from .plan import PART, Code, Function, Plan, Position, entered_within

# The marks of a loop are bits of one variable: several variables keep LLVM from turning branches into arithmetic.
_BYTE, _BITS = llvm.IntType(8), llvm.IntType(32)
_GENERATED = "<string>"


class Loop(NamedTuple):
    """A loop that becomes a kernel, and the function that it is in."""

    position: Position
    code: Code


class _Loops(threading.local):
    def __init__(self) -> None:
        self.stack: List[Loop] = []


_loops = _Loops()


@contextmanager
def within_loop(lowerer: Any, parfor: Any) -> Iterator[None]:
    """While the kernel of this loop is made."""
    place = place_of(parfor.loc)
    outer = lowerer.__dict__.get("_jitlisten_coverage")
    code = outer.function.code if outer is not None else Code(place.filename, place.line)
    _loops.stack.append(Loop(Position(place.frame, place.line), code))
    try:
        yield
    finally:
        _loops.stack.pop()


# By identity of the LLVM module, until it is complete. Not an attribute: Numba pickles modules.
_unfinished: Dict[int, "Lowering"] = {}


def begin(lowerer: Any) -> Optional["Lowering"]:
    """What goes with a lowerer; `None` if its function is not measured."""
    try:
        if not isinstance(lowerer.context, cpu.CPUContext):
            unmeasured.add("not for this processor", lowerer)
        elif not isinstance(lowerer.library, codegen.JITCodeLibrary):
            unmeasured.add("compiled ahead of time", lowerer)
        else:
            function = _function(lowerer)
            if function is not None:
                made = _unfinished[id(lowerer.module)] = Lowering(lowerer, function)
                return made
    except Exception as error:
        unmeasured.add("%s: %s" % (type(error).__name__, error), lowerer)
    return None


def finish(module: Any) -> None:
    """All functions of an LLVM module are lowered."""
    made = _unfinished.pop(id(module), None)
    if made is not None:
        made.finish(module)


class _Bits(NamedTuple):
    """The marks of a loop, while it runs."""

    variable: Any
    # The number of the bit.
    marks: Dict[Mark, int]


class Lowering:
    """The stores of one function that Numba lowers."""

    def __init__(self, lowerer: Any, function: Function) -> None:
        self._lowerer = lowerer
        self.function = function
        blocks = lowerer.func_ir.blocks
        self._plan = Plan(function, blocks)
        self._labels = {id(block): label for label, block in blocks.items()}
        self._label = 0
        # In the order of their bytes.
        self._marks: Dict[Mark, int] = {}
        # By LLVM function: the instruction that has the address of the table.
        self._bases: Dict[str, Any] = {}
        self._loops = loops.find(blocks)
        self._bits: Dict[Tuple[str, FrozenSet[int]], _Bits] = {}
        self._done = 0

    def begin_block(self, block: Any) -> None:
        self._label = self._labels[id(block)]
        self._done = len(self._lowerer.builder.function.blocks)

    def end_block(self) -> None:
        """Where an exception leaves a loop from within a statement, its marks are stored."""
        if self._label not in self._loops:
            return
        for block in self._lowerer.builder.function.blocks[self._done :]:
            if isinstance(block.terminator, instructions.Ret):
                builder = llvm.IRBuilder(block)
                builder.position_before(block.terminator)
                self._leave(builder)

    def before(self, statement: Any) -> None:
        """Stores that go before a statement."""
        self._store(self._plan.at.get(id(statement), ()))
        if isinstance(statement, ir.Jump):
            self._store_on_edge(statement.target)

    @contextmanager
    def on_edges(self, branch: Any) -> Iterator[None]:
        """While a statement is lowered: the targets of a branch are blocks with the stores of the edges, where there
        are such."""
        places, original = self._lowerer.blkmap, {}
        for target in {branch.truebr, branch.falsebr} if isinstance(branch, ir.Branch) else ():
            if (self._label, target) in self._plan.edges or self._leaves_loop(target):
                original[target] = places[target]
                builder = self._lowerer.builder
                edge = builder.append_basic_block("edge")
                with builder.goto_block(edge):
                    self._store_on_edge(target)
                    builder.branch(places[target])
                places[target] = edge
        try:
            yield
        finally:
            places.update(original)

    def _leaves_loop(self, target: int) -> bool:
        return self._label in self._loops and target not in self._loops[self._label]

    def _store_on_edge(self, target: int) -> None:
        leaves = self._leaves_loop(target)
        if leaves:
            self._leave(self._lowerer.builder)
        self._store(self._plan.edges.get((self._label, target), ()), not leaves)

    def _store(self, found: Any, in_loop: bool = True) -> None:
        builder = self._lowerer.builder
        bits = self._bits_of_loop() if in_loop and found else None
        for mark in found:
            if bits is not None and mark in bits.marks:
                bit = llvm.Constant(_BITS, 1 << bits.marks[mark])
                builder.store(builder.or_(builder.load(bits.variable), bit), bits.variable)
            else:
                builder.store(llvm.Constant(_BYTE, 1), self._place(builder, mark))

    def _place(self, builder: Any, mark: Mark) -> Any:
        at = self._marks.setdefault(mark, len(self._marks))
        return builder.gep(self._base(), [llvm.Constant(llvm.IntType(64), at)])

    def _bits_of_loop(self) -> Optional[_Bits]:
        """Of the loop that is lowered, if its marks are kept in a variable."""
        body = self._loops.get(self._label)
        if body is None:
            return None
        # Not the one of the caller, which may stand before a terminator.
        builder = self._lowerer.builder
        bits = self._bits.get((builder.function.name, body))
        if bits is None:
            blocks = self._lowerer.func_ir.blocks
            found = [
                mark
                for label in sorted(body)
                for each in blocks[label].body
                for mark in self._plan.at.get(id(each), ())
            ]
            found += [mark for edge, marks in self._plan.edges.items() if set(edge) <= body for mark in marks]
            numbers = {mark: number for number, mark in enumerate(dict.fromkeys(found))}
            with builder.goto_entry_block():
                variable = builder.alloca(_BITS)
                builder.store(llvm.Constant(_BITS, 0), variable)
            bits = _Bits(variable, numbers if len(numbers) <= _BITS.width else {})
            self._bits[builder.function.name, body] = bits
        return bits

    def _leave(self, builder: Any) -> None:
        """Stores what a loop has marked, without a branch: where there is no mark, to a place that no one reads."""
        bits = self._bits_of_loop()
        if bits is None or not bits.marks:
            return
        nowhere = cgutils.alloca_once(self._lowerer.builder, _BYTE)
        value = builder.load(bits.variable)
        for mark, number in bits.marks.items():
            is_set = builder.icmp_unsigned(
                "!=", builder.and_(value, llvm.Constant(_BITS, 1 << number)), llvm.Constant(_BITS, 0)
            )
            builder.store(llvm.Constant(_BYTE, 1), builder.select(is_set, self._place(builder, mark), nowhere))
        builder.store(llvm.Constant(_BITS, 0), bits.variable)

    def _base(self) -> Any:
        builder = self._lowerer.builder
        found = self._bases.get(builder.function.name)
        if found is None:
            with builder.goto_block(builder.function.entry_basic_block):
                block = builder.block
                builder.position_at_start(block)
                nowhere = llvm.Constant(_BYTE.as_pointer(), None)
                found = self._bases[builder.function.name] = builder.gep(nowhere, [llvm.Constant(llvm.IntType(64), 0)])
        return found

    def finish(self, module: Any) -> None:
        """All marks are known, and so is the table's name."""
        if not self._marks:
            return
        name = marks.name_of(self._marks)
        table = module.globals.get(name)
        if table is None:
            marks.register(name, list(self._marks))
            table = llvm.GlobalVariable(module, _BYTE, name)
        for base in self._bases.values():
            base.pointer = table
            base.operands = [table] + base.operands[1:]


def _function(lowerer: Any) -> Optional[Function]:
    func_ir = lowerer.func_ir
    identity, filename = func_ir.func_id, func_ir.loc.filename
    name = str(getattr(identity, "func_name", ""))
    if filename == _GENERATED:
        return _of_generated(lowerer, name)
    if name.startswith("__numba_array_expr_"):
        # It has the file of the user's expression, and line numbers that mean nothing there.
        return None
    path = paths.measured(filename)
    if path is None and filename.startswith("<"):
        unmeasured.add("code without a file", lowerer)
    # Also one of Numba's own may have lines of the user's: those of an inlined call.
    function = Function(Code(filename, identity.firstlineno, identity.func_qualname), paths.measured)
    function.entered = entered_within(identity.code)
    around = getattr(func_ir, PART, None)
    if around is not None:
        function.is_part = True
        function.before, function.after_return = around
    return function


def _of_generated(lowerer: Any, name: str) -> Optional[Function]:
    if name.startswith("__numba_parfor_gufunc") and _loops.stack:
        loop = _loops.stack[-1]
        return Function(loop.code, paths.measured, loop.position)
    stencil = STENCILS.get(name.rpartition("_")[2]) if name.startswith("__numba_stencil_") else None
    if stencil is not None:
        code = Code(stencil.filename, stencil.firstlineno)
        return Function(code, paths.measured, Position(None, -code.first))
    return None
