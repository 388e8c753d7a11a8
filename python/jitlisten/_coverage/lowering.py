"""Emits the stores of marks while Numba lowers a function."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Tuple

from llvmlite import ir as llvm
from llvmlite.ir import instructions
from numba.core import cgutils, codegen, cpu, ir
from numba.core.dispatcher import LiftedCode
from numba.parfors.parfor import Parfor

from .._numba.locations import own_location
from . import loops, marks, paths, unmeasured
from .marks import Mark
from .patches import TOO_EARLY
from .statements import EdgeMarks, MarkStatement, translated

# The marks of a loop are bits of one variable: several variables keep LLVM from converting branches to arithmetic.
_BYTE, _BITS = llvm.IntType(8), llvm.IntType(32)
# Numba lowers the first statements of a parallel loop with those of its function.
_HAVE_MARKS = (MarkStatement, EdgeMarks, Parfor)

# Marks of the true and of the false edge of a branch.
_NO_EDGE_MARKS: Tuple[List[MarkStatement], List[MarkStatement]] = ([], [])

# Unfinished lowerings by identity of their LLVM module. Not a module attribute, because Numba pickles modules.
_unfinished: Dict[int, "Lowering"] = {}


def begin(lowerer: Any) -> Optional["Lowering"]:
    """Creates the lowering of a function; returns `None` if the function has no marks."""
    try:
        if not _has_marks(lowerer.func_ir):
            _report_without_marks(lowerer)
        elif not isinstance(lowerer.context, cpu.CPUContext):
            unmeasured.add("not for this processor", lowerer)
        elif not isinstance(lowerer.library, codegen.JITCodeLibrary):
            unmeasured.add("compiled ahead of time", lowerer)
        else:
            lowering = _unfinished[id(lowerer.module)] = Lowering(lowerer)
            return lowering
    except Exception as error:
        unmeasured.add("%s: %s" % (type(error).__name__, error), lowerer)
    return None


def _has_marks(func_ir: Any) -> bool:
    return any(isinstance(statement, _HAVE_MARKS) for block in func_ir.blocks.values() for statement in block.body)


def _report_without_marks(lowerer: Any) -> None:
    filename, identity = lowerer.func_ir.loc.filename, lowerer.func_ir.func_id
    path = paths.measured_path(filename)
    # Numba generates functions without a file, or with the file of the user's expression.
    if filename == "<string>" or identity.func_name.startswith("__numba_"):
        return
    # A lifted loop may have no step from one line to another.
    if path is not None and (path, identity.firstlineno) not in translated:
        unmeasured.add(TOO_EARLY, lowerer)
    elif filename.startswith("<"):
        unmeasured.add("code without a file", lowerer)
    elif paths.is_missing(filename):
        unmeasured.add("the file did not exist when the code was compiled", lowerer)


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

    def __init__(self, lowerer: Any) -> None:
        self._lowerer = lowerer
        blocks = lowerer.func_ir.blocks
        self._labels = {id(block): label for label, block in blocks.items()}
        self._label = 0
        # Index of each mark in the table.
        self._marks: Dict[Mark, int] = {}
        # Instruction that yields the address of the table, by LLVM function.
        self._bases: Dict[str, Any] = {}
        self._dummies: Dict[str, Any] = {}
        self._loops = loops.find_short_loops(blocks)
        self._frequent = loops.find_frequent(blocks)
        loops.note_length(lowerer.func_ir.func_id.func, blocks)
        # Variables that hold code lifted from this function, loops and bodies of `with objmode`, that has marks itself.
        constants = {
            statement.target.name: statement.value.value
            for block in blocks.values()
            for statement in block.find_insts(ir.Assign)
            if isinstance(statement.value, ir.Const)
        }
        self._lifted = {
            name for name, value in constants.items() if isinstance(value, LiftedCode) and _has_marks(value.func_ir)
        }
        self._bits: Dict[Tuple[str, FrozenSet[int]], _Bits] = {}
        self._edge_marks = _NO_EDGE_MARKS

    def begin_block(self, block: Any) -> None:
        self._label = self._labels[id(block)]

    def store(self, statement: MarkStatement) -> None:
        builder = self._lowerer.builder
        self._lowerer.debuginfo.mark_location(builder, statement.loc.line)
        bits = self._bits_of_loop()
        if bits is not None and statement.mark in bits.marks:
            bit = llvm.Constant(_BITS, 1 << bits.marks[statement.mark])
            builder.store(builder.or_(builder.load(bits.variable), bit), bits.variable)
        else:
            self._store_byte(builder, statement.mark)

    def store_on_edges(self, statement: EdgeMarks) -> None:
        """Stores marks on the edges of the branch that is lowered next."""
        self._edge_marks = (statement.on_true, statement.on_false)

    @contextmanager
    def on_exits(self, statement: Any) -> Iterator[None]:
        """Context in which a statement is lowered. Stores the marks of edges, those of a loop where the program leaves
        it, and those of functions where an exception leaves them."""
        builder = self._lowerer.builder
        first_new_block = len(builder.function.blocks)
        yield
        if isinstance(statement, ir.Branch):
            self._mark_edges(statement)
        if not isinstance(statement, ir.Return):
            new_blocks = builder.function.blocks[first_new_block:]
            self._mark_exceptions(statement, new_blocks, of_callers_only=self._calls_lifted(statement))

    def _calls_lifted(self, statement: Any) -> bool:
        """Returns true for a call of lifted code, which has already marked where an exception left the function."""
        value = getattr(statement, "value", None)
        return isinstance(value, ir.Expr) and value.op == "call" and value.func.name in self._lifted

    def _mark_edges(self, branch: Any) -> None:
        builder = self._lowerer.builder
        terminator = builder.block.terminator
        edge_marks, self._edge_marks = self._edge_marks, _NO_EDGE_MARKS
        for index, (target, statements) in enumerate(zip((branch.truebr, branch.falsebr), edge_marks), 1):
            leaves_loop = self._leaves_loop(target)
            if not statements and not leaves_loop:
                continue
            edge = builder.append_basic_block("edge")
            with builder.goto_block(edge):
                for each in statements:
                    self.store(each)
                if leaves_loop:
                    self._store_loop_marks(builder)
                builder.branch(terminator.operands[index])
            terminator.operands[index] = edge

    def _mark_exceptions(self, statement: Any, new_blocks: List[Any], of_callers_only: bool = False) -> None:
        error_block = getattr(self._lowerer, "ehblock", None)
        for block in new_blocks:
            leave = block.terminator
            if isinstance(leave, instructions.Ret) or (
                isinstance(leave, instructions.Branch) and leave.operands[0] is error_block is not None
            ):
                builder = llvm.IRBuilder(block)
                builder.position_before(leave)
                if self._label in self._loops:
                    self._store_loop_marks(builder)
                for mark in self._marks_of_exception(statement.loc, of_callers_only):
                    self._store_byte(builder, mark)

    def _marks_of_exception(self, loc: Any, of_callers_only: bool) -> Iterator[Mark]:
        """Yields the marks of an exception that leaves the function at `loc` and the functions that it is inlined into.

        With `of_callers_only`, yields only those of the latter.
        """
        source, identity = own_location(loc), self._lowerer.func_ir.func_id
        line, frame = source.line, source.frame
        while True:
            filename, first = (frame or identity).filename, frame.first if frame else identity.firstlineno
            path = paths.measured_path(filename)
            is_generated = frame is source.frame and source.filename != filename
            is_wanted = not (is_generated or of_callers_only and frame is source.frame)
            if path is not None and line > 0 and is_wanted:
                for step in translated.get((path, first), {}).get(line, ()):
                    yield Mark(path, *step)
                    line = step[1]
                yield Mark(path, line, -first)
            if frame is None:
                return
            line, frame = frame.call.line, frame.call.frame

    def _leaves_loop(self, target: int) -> bool:
        return self._label in self._loops and target not in self._loops[self._label]

    def _store_byte(self, builder: Any, mark: Mark) -> None:
        address = self._mark_address(builder, mark)
        if self._label in self._frequent:
            # Threads that run the same code would otherwise wait for each other's cache line.
            is_set = builder.icmp_unsigned("!=", builder.load(address), _BYTE(0))
            address = builder.select(is_set, self._dummy(), address)
        builder.store(_BYTE(1), address)

    def _dummy(self) -> Any:
        """Returns the address of a byte that takes the stores of marks that are set already, or not to be set. So they
        need no branch."""
        builder = self._lowerer.builder
        dummy = self._dummies.get(builder.function.name)
        if dummy is None:
            dummy = self._dummies[builder.function.name] = cgutils.alloca_once(builder, _BYTE)
        return dummy

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
                statement.mark
                for label in sorted(body)
                for statement in blocks[label].body
                if isinstance(statement, MarkStatement)
            ]
            bit_by_mark = {mark: number for number, mark in enumerate(dict.fromkeys(loop_marks))}
            with builder.goto_entry_block():
                variable = builder.alloca(_BITS)
                builder.store(llvm.Constant(_BITS, 0), variable)
            bits = _Bits(variable, bit_by_mark if len(bit_by_mark) <= _BITS.width else {})
            self._bits[builder.function.name, body] = bits
        return bits

    def _store_loop_marks(self, builder: Any) -> None:
        """Stores the marks of the loop."""
        bits = self._bits_of_loop()
        if bits is None or not bits.marks:
            return
        dummy = self._dummy()
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

    def mark_callers_of_raise(self, statement: Any, block: Any) -> None:
        """Stores the exits of the functions that a `raise` was inlined into. It ends its block, and has a mark only for
        its own function."""
        if not isinstance(statement, ir.Return) and own_location(statement.loc).frame is not None:
            self._mark_exceptions(statement, [block], of_callers_only=True)

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
