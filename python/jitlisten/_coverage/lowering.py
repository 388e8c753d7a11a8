"""Emits the stores of a plan while Numba lowers a function."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Any, Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Tuple

from llvmlite import ir as llvm
from llvmlite.ir import instructions
from numba.core import cgutils, codegen, cpu, ir

from .._numba.locations import own_location
from . import loops, marks, paths, unmeasured
from .marks import Mark
from .plan import PART, Code, Function, Plan, Position, lines_entered_midway

# The marks of a loop are bits of one variable: several variables keep LLVM from converting branches to arithmetic.
_BYTE, _BITS = llvm.IntType(8), llvm.IntType(32)
_GENERATED = "<string>"
# Stencils by name suffix of the generated function that contains their statements.
stencils: Dict[str, Any] = {}


class Loop(NamedTuple):
    """Parallel loop that becomes a kernel, and the function that contains it."""

    position: Position
    code: Code


class _Loops(threading.local):
    def __init__(self) -> None:
        self.stack: List[Loop] = []


_loops = _Loops()


@contextmanager
def within_loop(lowerer: Any, parfor: Any) -> Iterator[None]:
    """Context in which Numba compiles the kernel of a parallel loop."""
    source = own_location(parfor.loc)
    outer = lowerer.__dict__.get("_jitlisten_coverage")
    code = outer.function.code if outer is not None else Code(source.filename, source.line)
    _loops.stack.append(Loop(Position(source.frame, source.line), code))
    try:
        yield
    finally:
        _loops.stack.pop()


# Unfinished lowerings by identity of their LLVM module. Not a module attribute, because Numba pickles modules.
_unfinished: Dict[int, "Lowering"] = {}


def begin(lowerer: Any) -> Optional["Lowering"]:
    """Creates the lowering of a function; returns `None` if the function is not measured."""
    try:
        if not isinstance(lowerer.context, cpu.CPUContext):
            unmeasured.add("not for this processor", lowerer)
        elif not isinstance(lowerer.library, codegen.JITCodeLibrary):
            unmeasured.add("compiled ahead of time", lowerer)
        else:
            function = _measured_function(lowerer)
            if function is not None:
                lowering = _unfinished[id(lowerer.module)] = Lowering(lowerer, function)
                return lowering
    except Exception as error:
        unmeasured.add("%s: %s" % (type(error).__name__, error), lowerer)
    return None


def finish(module: Any) -> None:
    """Completes the marks of an LLVM module after all its functions have been lowered."""
    lowering = _unfinished.pop(id(module), None)
    if lowering is not None:
        lowering.finish(module)


class _Bits(NamedTuple):
    """Marks of a loop, as bits of a variable."""

    variable: Any
    # Bit number of each mark.
    marks: Dict[Mark, int]


class Lowering:
    """Stores of one function that Numba lowers."""

    def __init__(self, lowerer: Any, function: Function) -> None:
        self._lowerer = lowerer
        self.function = function
        blocks = lowerer.func_ir.blocks
        self._plan = Plan(function, blocks)
        self._labels = {id(block): label for label, block in blocks.items()}
        self._label = 0
        # Index of each mark in the table.
        self._marks: Dict[Mark, int] = {}
        # Instruction that yields the address of the table, by LLVM function.
        self._bases: Dict[str, Any] = {}
        self._loops = loops.find_short_loops(blocks)
        self._bits: Dict[Tuple[str, FrozenSet[int]], _Bits] = {}
        self._first_new_block = 0

    def begin_block(self, block: Any) -> None:
        self._label = self._labels[id(block)]
        self._first_new_block = len(self._lowerer.builder.function.blocks)

    def end_block(self) -> None:
        """Stores the marks of a loop where an exception leaves it from within a statement."""
        if self._label not in self._loops:
            return
        for block in self._lowerer.builder.function.blocks[self._first_new_block :]:
            if isinstance(block.terminator, instructions.Ret):
                builder = llvm.IRBuilder(block)
                builder.position_before(block.terminator)
                self._store_loop_marks(builder)

    def store_before(self, statement: Any) -> None:
        """Emits the stores before a statement, with the statement's line."""
        self._lowerer.debuginfo.mark_location(self._lowerer.builder, self._lowerer.loc.line)
        self._store(self._plan.marks_before.get(id(statement), ()))
        if isinstance(statement, ir.Jump):
            self._store_on_edge(statement.target)

    @contextmanager
    def on_edges(self, branch: Any) -> Iterator[None]:
        """Context in which a statement is lowered. Targets of a branch are replaced by blocks with the stores of the
        edges, if there are any."""
        block_map, original_blocks = self._lowerer.blkmap, {}
        for target in {branch.truebr, branch.falsebr} if isinstance(branch, ir.Branch) else ():
            if (self._label, target) in self._plan.edges or self._leaves_loop(target):
                original_blocks[target] = block_map[target]
                builder = self._lowerer.builder
                edge = builder.append_basic_block("edge")
                with builder.goto_block(edge):
                    self._store_on_edge(target)
                    builder.branch(block_map[target])
                block_map[target] = edge
        try:
            yield
        finally:
            block_map.update(original_blocks)

    def _leaves_loop(self, target: int) -> bool:
        return self._label in self._loops and target not in self._loops[self._label]

    def _store_on_edge(self, target: int) -> None:
        leaves = self._leaves_loop(target)
        if leaves:
            self._store_loop_marks(self._lowerer.builder)
        self._store(self._plan.edges.get((self._label, target), ()), not leaves)

    def _store(self, new_marks: Any, in_loop: bool = True) -> None:
        builder = self._lowerer.builder
        bits = self._bits_of_loop() if in_loop and new_marks else None
        for mark in new_marks:
            if bits is not None and mark in bits.marks:
                bit = llvm.Constant(_BITS, 1 << bits.marks[mark])
                builder.store(builder.or_(builder.load(bits.variable), bit), bits.variable)
            else:
                builder.store(llvm.Constant(_BYTE, 1), self._mark_address(builder, mark))

    def _mark_address(self, builder: Any, mark: Mark) -> Any:
        index = self._marks.setdefault(mark, len(self._marks))
        return builder.gep(self._base(), [llvm.Constant(llvm.IntType(64), index)])

    def _bits_of_loop(self) -> Optional[_Bits]:
        """Returns the bits of the current loop, if its marks are kept in a variable."""
        body = self._loops.get(self._label)
        if body is None:
            return None
        # Use the lowerer's builder, because the caller's may be positioned before a terminator.
        builder = self._lowerer.builder
        bits = self._bits.get((builder.function.name, body))
        if bits is None:
            blocks = self._lowerer.func_ir.blocks
            loop_marks = [
                mark
                for label in sorted(body)
                for statement in blocks[label].body
                for mark in self._plan.marks_before.get(id(statement), ())
            ]
            loop_marks += [
                mark for edge, edge_marks in self._plan.edges.items() if set(edge) <= body for mark in edge_marks
            ]
            bit_by_mark = {mark: number for number, mark in enumerate(dict.fromkeys(loop_marks))}
            with builder.goto_entry_block():
                variable = builder.alloca(_BITS)
                builder.store(llvm.Constant(_BITS, 0), variable)
            bits = _Bits(variable, bit_by_mark if len(bit_by_mark) <= _BITS.width else {})
            self._bits[builder.function.name, body] = bits
        return bits

    def _store_loop_marks(self, builder: Any) -> None:
        """Stores the marks of the loop without a branch, by storing unset marks to a dummy byte."""
        bits = self._bits_of_loop()
        if bits is None or not bits.marks:
            return
        dummy = cgutils.alloca_once(self._lowerer.builder, _BYTE)
        value = builder.load(bits.variable)
        for mark, bit in bits.marks.items():
            is_set = builder.icmp_unsigned(
                "!=", builder.and_(value, llvm.Constant(_BITS, 1 << bit)), llvm.Constant(_BITS, 0)
            )
            builder.store(llvm.Constant(_BYTE, 1), builder.select(is_set, self._mark_address(builder, mark), dummy))
        builder.store(llvm.Constant(_BITS, 0), bits.variable)

    def _base(self) -> Any:
        builder = self._lowerer.builder
        base = self._bases.get(builder.function.name)
        if base is None:
            with builder.goto_block(builder.function.entry_basic_block):
                block = builder.block
                builder.position_at_start(block)
                null = llvm.Constant(_BYTE.as_pointer(), None)
                base = self._bases[builder.function.name] = builder.gep(null, [llvm.Constant(llvm.IntType(64), 0)])
        return base

    def finish(self, module: Any) -> None:
        """Names the table, now that all marks are known."""
        if not self._marks:
            return
        name = marks.symbol_of(self._marks)
        table = module.globals.get(name)
        if table is None:
            marks.register(name, list(self._marks))
            table = llvm.GlobalVariable(module, _BYTE, name)
        for base in self._bases.values():
            base.pointer = table
            base.operands = [table] + base.operands[1:]


def _measured_function(lowerer: Any) -> Optional[Function]:
    func_ir = lowerer.func_ir
    identity, filename = func_ir.func_id, func_ir.loc.filename
    name = str(getattr(identity, "func_name", ""))
    if filename == _GENERATED:
        return _generated_function(lowerer, name)
    if name.startswith("__numba_array_expr_"):
        # This function has the file of the user's expression, but meaningless line numbers.
        return None
    path = paths.measured_path(filename)
    if path is None and filename.startswith("<"):
        unmeasured.add("code without a file", lowerer)
    # One of Numba's own functions may also contain the user's lines, if it inlines a user function.
    function = Function(Code(filename, identity.firstlineno, identity.func_qualname), paths.measured_path)
    function.midway_lines = lines_entered_midway(identity.code)
    positions = getattr(func_ir, PART, None)
    if positions is not None:
        function.is_part = True
        function.position_before, function.position_after_return = positions
    return function


def _generated_function(lowerer: Any, name: str) -> Optional[Function]:
    if name.startswith("__numba_parfor_gufunc") and _loops.stack:
        loop = _loops.stack[-1]
        return Function(loop.code, paths.measured_path, loop.position)
    stencil = stencils.get(name.rpartition("_")[2]) if name.startswith("__numba_stencil_") else None
    if stencil is not None:
        code = Code(stencil.filename, stencil.firstlineno)
        return Function(code, paths.measured_path, Position(None, -code.first))
    return None
