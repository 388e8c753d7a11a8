"""Chooses the marks of a function: before which statements of Numba's intermediate representation, and on which edges
between its blocks.

    position    a line, and the inlined call that it belongs to (`jitlisten._numba.locations`)
    step        from one position to the next: the arcs that coverage.py would see, out of inlined calls and into others

A mark is an arc even if only lines are measured: its ends are the lines, and it costs no more.

Numba's intermediate representation gives some statements a line that does not run there. They get no position:

    copies for phis, which have the line of the copied value   line 0, see hooks.py
    jumps where several paths meet                             see `_find_jumps`
    ends of lines, before Python 3.10                          see `_drop_line_ends`
    statements that are added for `try`
"""

from __future__ import annotations

import dis
import sys
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Set, Tuple

from numba.core import ir

from .._numba.locations import Inlined, own_location
from .marks import Mark

_RAISE_TYPES = tuple(getattr(ir, name) for name in ("Raise", "StaticRaise", "DynamicRaise") if hasattr(ir, name))
# Attribute that keeps the positions before and after a part of a function: a lifted loop or a `with objmode` body.
PART = "_jitlisten_part"
_TRY_HELPERS = ("mark_try_block", "end_try_block", "exception_check")


class Position(NamedTuple):
    """Position in the program. A negative line means outside of the function that begins on that line."""

    frame: Optional[Inlined]
    line: int


class Code(NamedTuple):
    """A function that the user wrote."""

    path: str
    # Line of the first decorator, if there is one.
    first: int
    name: str = ""


class BlockInfo:
    """Positions and edges of one basic block."""

    def __init__(self, label: int, block: Any) -> None:
        self.label = label
        self.successors: List[int] = list(block.body[-1].get_targets())
        self.end = len(block.body) - 1
        self.predecessors: List[int] = []
        # Positions by index of the statement.
        self.positions: List[Tuple[int, Position]] = []
        self.exits = False
        self.resumes_after_part = False

    @property
    def last_position(self) -> Position:
        return self.positions[-1][1]

    @property
    def last_before_jump(self) -> Optional[Position]:
        """Returns the last position before the final jump, because a jump to the next block has the line of that
        block."""
        return next((position for index, position in reversed(self.positions) if index < self.end), None)


class Plan:
    """Marks of a function: `marks_before` holds those before a statement, `edges` those between two blocks."""

    def __init__(self, function: "Function", blocks: Dict[int, Any]) -> None:
        self._function = function
        self.marks_before: Dict[int, List[Mark]] = {}
        self.edges: Dict[Tuple[int, int], List[Mark]] = {}
        self._blocks = {label: BlockInfo(label, block) for label, block in blocks.items()}
        for label, info in self._blocks.items():
            for target in set(info.successors):
                self._blocks[target].predecessors.append(label)
        self._lone_jumps: List[Tuple[BlockInfo, int, Any]] = []
        for label, info in self._blocks.items():
            self._find_positions(info, blocks[label])
        self._find_jumps()
        if function.midway_lines:
            self._drop_line_ends(blocks)
        first = min(blocks)
        for label, info in self._blocks.items():
            self._find_parts(info, blocks[label])
        for label, info in self._blocks.items():
            self._mark_within(info, blocks[label])
            self._mark_entry(label, info, blocks[label], label == first)

    def _find_positions(self, info: BlockInfo, block: Any) -> None:
        if self._function.is_part and isinstance(block.body[-1], ir.Return):
            if self._function.position_after_return is not None:
                info.positions.append((0, self._function.position_after_return))
            return
        try_statements = _find_try_statements(block)
        for index, statement in enumerate(block.body):
            if id(statement) in try_statements or _has_no_line(statement):
                continue
            if isinstance(statement, ir.Jump) and len(info.predecessors) > 1 and not info.positions:
                self._lone_jumps.append((info, index, statement))
                continue
            position = self._function.position(statement.loc)
            if position is not None:
                info.positions.append((index, position))
        info.exits = isinstance(block.body[-1], (ir.Return,) + _RAISE_TYPES)

    def _find_jumps(self) -> None:
        """Gives a position to each jump where several paths meet, unless the jump has the line of one of these paths.
        For example, `continue` after `if a or b` has its own line."""
        for info, index, statement in self._lone_jumps:
            position = self._function.position(statement.loc)
            if position is not None and all(earlier != position for earlier, _ in self._paths_to(info)):
                info.positions.append((index, position))

    def _drop_line_ends(self, blocks: Dict[int, Any]) -> None:
        """Drops the positions of code without a line of its own, such as `return None`, which has the line of the
        source above it. A jump to this code does not reach the start of that line, and coverage.py does not see it."""
        earlier_positions: Set[Position] = set()
        handlers = set()
        for label, info in sorted(self._blocks.items()):
            terminator = blocks[label].body[-1]
            ends_try = id(terminator) in _find_try_statements(blocks[label])
            if ends_try:
                handlers.add(terminator.truebr)
            first_position = info.positions[0][1] if info.positions else None
            if (
                first_position is not None
                and label not in handlers
                and first_position in earlier_positions
                and self._is_entered(label, first_position)
            ):
                while info.positions and info.positions[0][1] == first_position:
                    info.positions.pop(0)
                if info.exits and not info.positions and self._function.position_after_return is not None:
                    info.positions.append((info.end, self._function.position_after_return))
            if ends_try and not info.positions:
                # No statement in the block can raise an exception.
                self._blocks[terminator.truebr].predecessors.remove(label)
                info.successors = [terminator.falsebr]
            earlier_positions.update(position for index, position in info.positions if index < info.end)

    def _is_entered(self, label: int, position: Position) -> bool:
        """Returns true if the program jumps from other lines to a block that may begin in the middle of this line."""
        sources = [edge[0] for _, edge in self._paths_to(self._blocks[label]) if edge is not None]
        return (
            position.frame is None
            and position.line in self._function.midway_lines
            and any(self._blocks[source].last_before_jump != position for source in sources if source < label)
        )

    def _find_parts(self, info: BlockInfo, block: Any) -> None:
        """Finds the parts of the function that are compiled separately, each called in its own block, and the positions
        at which they begin and end."""
        part = next(filter(None, map(_find_part, block.body)), None)
        if part is None or not info.positions:
            return
        position_before: Position = info.last_position
        position_after: Optional[Position] = position_before
        if not hasattr(part, "output_types") or sys.version_info < (3, 10):
            # The program does not return to the line of the loop, but continues with the next statement.
            info.resumes_after_part = True
            if hasattr(part, "output_types"):
                self._drop_end_of_with(info, part.func_ir.blocks)
            position_after = self._find_resume_position(info)
        setattr(part.func_ir, PART, (position_before, position_after))

    def _drop_end_of_with(self, info: BlockInfo, body: Dict[int, Any]) -> None:
        """Drops the position of the end of a `with`: before Python 3.10 it has the last line of the body."""
        lines = {statement.loc.line for block in body.values() for statement in block.body}
        for label in info.successors:
            positions = self._blocks[label].positions
            while positions and positions[0][1].line in lines - {info.last_position.line}:
                positions.pop(0)

    def _find_resume_position(self, block: BlockInfo) -> Optional[Position]:
        """Returns the position at which the program continues after a part, if it is unique. In the blocks in between,
        Numba determines through which exit the program left a loop."""
        last_position, worklist, visited, resume_positions = block.last_position, list(block.successors), set(), set()
        while worklist:
            label = worklist.pop()
            if label in visited:
                continue
            visited.add(label)
            info = self._blocks[label]
            if info.positions and info.positions[0][1] != last_position:
                resume_positions.add(info.positions[0][1])
                continue
            if all(position == last_position for _, position in info.positions):
                info.positions.clear()
            worklist += info.successors
        return resume_positions.pop() if len(resume_positions) == 1 else None

    def _mark_within(self, info: BlockInfo, block: Any) -> None:
        previous = None
        for index, position in info.positions:
            if previous is not None:
                self._add_marks(block.body[index], self._marks_of_step(previous, position))
            previous = position
        if info.exits and previous is not None:
            target = (
                self._function.position_after_return
                if isinstance(block.body[-1], ir.Return)
                else self._function.outside
            )
            if target is not None:
                self._add_marks(block.body[-1], self._marks_of_step(previous, target))

    def _mark_entry(self, label: int, info: BlockInfo, block: Any, is_first: bool) -> None:
        if not info.positions:
            return
        index, position = info.positions[0]
        entry_marks: List[Mark] = []
        if is_first:
            entry_marks += self._marks_of_step(self._function.position_before, position)
        paths = list(self._paths_to(info))
        for previous, edge in paths:
            steps = self._marks_of_step(previous, position)
            if edge is None or len(paths) == 1 and not is_first and edge[1] == label:
                entry_marks += steps
            elif steps:
                marks = self.edges.setdefault(edge, [])
                marks += [mark for mark in steps if mark not in marks]
        # Mark each line once, whichever path leads to it.
        self.marks_before[id(block.body[index])] = list(dict.fromkeys(entry_marks)) + self.marks_before.get(
            id(block.body[index]), []
        )

    def _paths_to(self, block: BlockInfo) -> Iterator[Tuple[Optional[Position], Optional[Tuple[int, int]]]]:
        """Yields the last positions before a block, each with the edge on which the program leaves it. Skips blocks
        without positions."""
        visited: Set[int] = set()
        worklist = [(predecessor, block.label, True) for predecessor in block.predecessors]
        while worklist:
            predecessor, successor, is_certain = worklist.pop()
            info = self._blocks[predecessor]
            if info.positions:
                # If a skipped block has several successors, the edge does not determine the target.
                yield (
                    (info.last_position, (predecessor, successor))
                    if is_certain and not info.resumes_after_part
                    else (None, None)
                )
            elif predecessor not in visited:
                visited.add(predecessor)
                is_certain = is_certain and len(set(info.successors)) == 1
                if not info.predecessors:
                    yield self._function.position_before, None
                worklist += [(earlier, predecessor, is_certain) for earlier in info.predecessors]

    def _marks_of_step(self, origin: Optional[Position], target: Position) -> List[Mark]:
        code = self._function.code
        if origin is None:
            return self._make_marks([(self._code_of(target.frame), 0, target.line)])
        left_calls, entered_calls = _inlined_calls(origin.frame), _inlined_calls(target.frame)
        shared = 0
        while shared < min(len(left_calls), len(entered_calls)) and left_calls[shared] is entered_calls[shared]:
            shared += 1
        arcs = []
        line = origin.line
        for frame in reversed(left_calls[shared:]):
            arcs.append((self._code_of(frame), line, -frame.first))
            line = frame.call.line
        owner = code if not shared else self._code_of(left_calls[shared - 1])
        for frame in entered_calls[shared:]:
            arcs.append((owner, line, frame.call.line))
            owner, line = self._code_of(frame), -frame.first
        arcs.append((owner, line, target.line))
        return self._make_marks(arcs)

    def _code_of(self, frame: Optional[Inlined]) -> Code:
        return self._function.code if frame is None else Code(frame.filename, frame.first)

    def _make_marks(self, arcs: List[Tuple[Code, int, int]]) -> List[Mark]:
        marks = []
        for code, from_line, to_line in arcs:
            path = self._function.measured(code.path)
            if path is None or from_line == to_line:
                continue
            marks.append(Mark(path, from_line, to_line))
        return marks

    def _add_marks(self, statement: Any, marks: List[Mark]) -> None:
        if marks:
            self.marks_before.setdefault(id(statement), []).extend(marks)

    def predecessors(self, label: int) -> List[int]:
        return self._blocks[label].predecessors


def _has_no_line(statement: Any) -> bool:
    return isinstance(statement, ir.Del) or (isinstance(statement, ir.Assign) and isinstance(statement.value, ir.Arg))


def _find_part(statement: Any) -> Optional[Any]:
    is_constant = isinstance(statement, ir.Assign) and isinstance(statement.value, (ir.Const, ir.Global, ir.FreeVar))
    part = statement.value.value if is_constant else None
    return part if hasattr(getattr(part, "func_ir", None), PART) else None


def _find_try_statements(block: Any) -> Set[int]:
    """Returns the identities of the statements that Numba adds for `try`, and of the exception branches, which have the
    line of the next statement."""
    names, identities = set(), set()
    for statement in block.body:
        if isinstance(statement, ir.Assign):
            value = statement.value
            is_helper = (
                isinstance(value, (ir.Global, ir.FreeVar)) and getattr(value.value, "__name__", "") in _TRY_HELPERS
            )
            is_call = isinstance(value, ir.Expr) and value.op == "call" and value.func.name in names
            if is_helper or is_call:
                names.add(statement.target.name)
                identities.add(id(statement))
        elif isinstance(statement, ir.Branch) and statement.cond.name in names:
            identities.add(id(statement))
    return identities


def _inlined_calls(frame: Optional[Inlined]) -> List[Inlined]:
    """Returns the inlined calls from the outermost one to this one."""
    chain: List[Inlined] = []
    while frame is not None:
        chain.append(frame)
        frame = frame.call.frame
    return chain[::-1]


def lines_entered_midway(code: Any) -> FrozenSet[int]:
    """Returns the lines that a jump of the function enters at a point other than their start. Empty since Python 3.10,
    in which every instruction has the line that it belongs to."""
    if sys.version_info >= (3, 10):
        return frozenset()
    starts = dict(dis.findlinestarts(code))
    return frozenset(
        starts[max(start for start in starts if start < target)]
        for target in dis.findlabels(code.co_code)
        if target not in starts
    )


class Function:
    """Function that is lowered: a user function, a part of one, or one that is generated around the user's
    statements."""

    def __init__(
        self, code: Code, measured: Callable[[str], Optional[str]], generated: Optional[Position] = None
    ) -> None:
        self.code = code
        self.measured = measured
        self.outside = Position(None, -code.first)
        # True for a lifted loop, and for the body of a `with objmode`.
        self.is_part = False
        # Lines that a jump enters at a point other than their start.
        self.midway_lines: FrozenSet[int] = frozenset()
        # Position of generated statements.
        self._generated = generated
        self.position_before: Optional[Position] = generated or self.outside
        self.position_after_return: Optional[Position] = generated or self.outside

    def position(self, loc: Any) -> Optional[Position]:
        """Returns the position of a statement; `None` if its line does not run there."""
        source = own_location(loc)
        first = self.code.first if source.frame is None else source.frame.first
        if source.line < 1:
            return None
        if source.filename == "<string>" and self._generated is not None:
            return self._generated
        if source.line == first and not self._is_expression(source.frame):
            return None
        path = self.code.path if source.frame is None else source.frame.filename
        return Position(source.frame, source.line) if source.filename == path else None

    def _is_expression(self, frame: Optional[Inlined]) -> bool:
        """Returns true for a function that begins with its body: `<lambda>`, `<listcomp>`. In other functions, code on
        the first line is not a statement."""
        return (self.code.name if frame is None else frame.name).endswith(">")
