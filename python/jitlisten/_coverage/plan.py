"""Which marks a function gets: at which statements of Numba's intermediate representation, and on which edges between
its blocks.

    position    a line, and the inlined call that it belongs to (`jitlisten._lines.locations`)
    step        from one position to the next: the arcs that coverage.py would see, out of inlined calls and into others

A mark is an arc, also where only lines are measured: its ends are the lines, and it costs no more.

Numba's intermediate representation names some lines that do not run there. Their statements get no position:

    copies for phis, which have the line of what is copied     line 0, see patches.py
    jumps where several ways meet                              see `_find_jumps`
    ends of lines, before Python 3.10                          see `_leave_out_ends_of_lines`
    what is added for `try`
"""

from __future__ import annotations

import dis
import sys
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Set, Tuple

from numba.core import ir

from .._lines.locations import Inlined, place_of
from .marks import Mark

_RAISES = tuple(getattr(ir, name) for name in ("Raise", "StaticRaise", "DynamicRaise") if hasattr(ir, name))
# An attribute of a part of a function, a lifted loop or the body of a `with objmode`: the positions before and after.
PART = "_jitlisten_part"
_MACHINERY = ("mark_try_block", "end_try_block", "exception_check")


class Position(NamedTuple):
    """Where the program is. A negative line: outside of the function that begins there."""

    frame: Optional[Inlined]
    line: int


class Code(NamedTuple):
    """The function that a user wrote."""

    path: str
    # Of the first decorator, if there is one.
    first: int
    name: str = ""


class Block:
    """One block, as far as marks go."""

    def __init__(self, label: int, block: Any) -> None:
        self.label = label
        self.successors: List[int] = list(block.body[-1].get_targets())
        self.end = len(block.body) - 1
        self.predecessors: List[int] = []
        # By index of the statement.
        self.positions: List[Tuple[int, Position]] = []
        self.leaves = False
        self.goes_on_from_part = False

    @property
    def last(self) -> Position:
        return self.positions[-1][1]

    @property
    def last_but_jump(self) -> Optional[Position]:
        """A jump to the next block has the line of that."""
        return next((position for index, position in reversed(self.positions) if index < self.end), None)


class Plan:
    """`at` has the marks before a statement, `edges` those on the way from one block to another."""

    def __init__(self, function: "Function", blocks: Dict[int, Any]) -> None:
        self._function = function
        self.at: Dict[int, List[Mark]] = {}
        self.edges: Dict[Tuple[int, int], List[Mark]] = {}
        self._blocks = {label: Block(label, block) for label, block in blocks.items()}
        for label, found in self._blocks.items():
            for target in set(found.successors):
                self._blocks[target].predecessors.append(label)
        self._lone_jumps: List[Tuple[Block, int, Any]] = []
        for label, found in self._blocks.items():
            self._find_positions(found, blocks[label])
        self._find_jumps()
        if function.entered:
            self._leave_out_ends_of_lines(blocks)
        first = min(blocks)
        for label, found in self._blocks.items():
            self._find_parts(found, blocks[label])
        for label, found in self._blocks.items():
            self._within(found, blocks[label])
            self._into(label, found, blocks[label], label == first)

    def _find_positions(self, found: Block, block: Any) -> None:
        if self._function.is_part and isinstance(block.body[-1], ir.Return):
            if self._function.after_return is not None:
                found.positions.append((0, self._function.after_return))
            return
        machinery = _machinery_of_try(block)
        for index, statement in enumerate(block.body):
            if id(statement) in machinery or _has_no_line(statement):
                continue
            if isinstance(statement, ir.Jump) and len(found.predecessors) > 1 and not found.positions:
                self._lone_jumps.append((found, index, statement))
                continue
            position = self._function.position(statement.loc)
            if position is not None:
                found.positions.append((index, position))
        found.leaves = isinstance(block.body[-1], (ir.Return,) + _RAISES)

    def _find_jumps(self) -> None:
        """Where several ways meet, a jump has the line of one of them, or one of its own: `continue` after `if a or
        b`."""
        for found, index, statement in self._lone_jumps:
            position = self._function.position(statement.loc)
            if position is not None and all(before != position for before, _ in self._ways_to(found)):
                found.positions.append((index, position))

    def _leave_out_ends_of_lines(self, blocks: Dict[int, Any]) -> None:
        """What has no line of its own, such as `return None`, has the line of the text above it. A jump to there does
        not go to the beginning of that line, and coverage.py does not see it."""
        above: Set[Position] = set()
        handlers = set()
        for label, found in sorted(self._blocks.items()):
            last = blocks[label].body[-1]
            ends_try = id(last) in _machinery_of_try(blocks[label])
            if ends_try:
                handlers.add(last.truebr)
            first = found.positions[0][1] if found.positions else None
            if first is not None and label not in handlers and first in above and self._is_entered(label, first):
                while found.positions and found.positions[0][1] == first:
                    found.positions.pop(0)
                if found.leaves and not found.positions and self._function.after_return is not None:
                    found.positions.append((found.end, self._function.after_return))
            if ends_try and not found.positions:
                # Nothing in it can raise an exception.
                self._blocks[last.truebr].predecessors.remove(label)
                found.successors = [last.falsebr]
            above.update(position for index, position in found.positions if index < found.end)

    def _is_entered(self, label: int, position: Position) -> bool:
        """Whether the program comes from other lines to a block that may begin within this one."""
        ways = [edge[0] for _, edge in self._ways_to(self._blocks[label]) if edge is not None]
        return (
            position.frame is None
            and position.line in self._function.entered
            and any(self._blocks[each].last_but_jump != position for each in ways if each < label)
        )

    def _find_parts(self, found: Block, block: Any) -> None:
        """Parts of the function that are compiled by themselves, each called in a block of its own: where they begin
        and where they go on."""
        part = next(filter(None, map(_part_of, block.body)), None)
        if part is None or not found.positions:
            return
        before: Position = found.last
        after: Optional[Position] = before
        if not hasattr(part, "output_types") or sys.version_info < (3, 10):
            # The program does not come back to the line of the loop, but goes on with what follows.
            found.goes_on_from_part = True
            if hasattr(part, "output_types"):
                self._leave_out_end_of_with(found, part.func_ir.blocks)
            after = self._first_after(found)
        setattr(part.func_ir, PART, (before, after))

    def _leave_out_end_of_with(self, found: Block, body: Dict[int, Any]) -> None:
        """It has the last line of the body, before Python 3.10."""
        lines = {statement.loc.line for block in body.values() for statement in block.body}
        for label in found.successors:
            after = self._blocks[label].positions
            while after and after[0][1].line in lines - {found.last.line}:
                after.pop(0)

    def _first_after(self, block: Block) -> Optional[Position]:
        """Where the program goes on after a part, if that is one line. In between, Numba sorts out by which exit it
        left a loop."""
        line, todo, seen, found = block.last, list(block.successors), set(), set()
        while todo:
            label = todo.pop()
            if label in seen:
                continue
            seen.add(label)
            each = self._blocks[label]
            if each.positions and each.positions[0][1] != line:
                found.add(each.positions[0][1])
                continue
            if all(position == line for _, position in each.positions):
                each.positions.clear()
            todo += each.successors
        return found.pop() if len(found) == 1 else None

    def _within(self, found: Block, block: Any) -> None:
        before = None
        for index, position in found.positions:
            if before is not None:
                self._add(block.body[index], self._step(before, position))
            before = position
        if found.leaves and before is not None:
            after = self._function.after_return if isinstance(block.body[-1], ir.Return) else self._function.outside
            if after is not None:
                self._add(block.body[-1], self._step(before, after))

    def _into(self, label: int, found: Block, block: Any, is_first: bool) -> None:
        if not found.positions:
            return
        index, position = found.positions[0]
        start: List[Mark] = []
        if is_first:
            start += self._step(self._function.before, position)
        ways = list(self._ways_to(found))
        for before, edge in ways:
            steps = self._step(before, position)
            if edge is None or len(ways) == 1 and not is_first and edge[1] == label:
                start += steps
            elif steps:
                marks = self.edges.setdefault(edge, [])
                marks += [mark for mark in steps if mark not in marks]
        # Once per line, whichever way.
        self.at[id(block.body[index])] = list(dict.fromkeys(start)) + self.at.get(id(block.body[index]), [])

    def _ways_to(self, block: Block) -> Iterator[Tuple[Optional[Position], Optional[Tuple[int, int]]]]:
        """The last positions before a block, each with the edge on which the program leaves it. Blocks without
        positions are passed."""
        seen: Set[int] = set()
        todo = [(before, block.label, True) for before in block.predecessors]
        while todo:
            before, after, certain = todo.pop()
            found = self._blocks[before]
            if found.positions:
                # Where a passed block has several successors, the edge does not tell where it leads.
                yield (found.last, (before, after)) if certain and not found.goes_on_from_part else (None, None)
            elif before not in seen:
                seen.add(before)
                certain = certain and len(set(found.successors)) == 1
                if not found.predecessors:
                    yield self._function.before, None
                todo += [(earlier, before, certain) for earlier in found.predecessors]

    def _step(self, before: Optional[Position], after: Position) -> List[Mark]:
        code = self._function.code
        if before is None:
            return self._marks([(self._code_of(after.frame), 0, after.line)])
        out, into = _chain(before.frame), _chain(after.frame)
        common = 0
        while common < min(len(out), len(into)) and out[common] is into[common]:
            common += 1
        arcs = []
        line = before.line
        for frame in reversed(out[common:]):
            arcs.append((self._code_of(frame), line, -frame.first))
            line = frame.call.line
        whose = code if not common else self._code_of(out[common - 1])
        for frame in into[common:]:
            arcs.append((whose, line, frame.call.line))
            whose, line = self._code_of(frame), -frame.first
        arcs.append((whose, line, after.line))
        return self._marks(arcs)

    def _code_of(self, frame: Optional[Inlined]) -> Code:
        return self._function.code if frame is None else Code(frame.filename, frame.first)

    def _marks(self, arcs: List[Tuple[Code, int, int]]) -> List[Mark]:
        marks = []
        for code, before, after in arcs:
            path = self._function.measured(code.path)
            if path is None or before == after:
                continue
            marks.append(Mark(path, before, after))
        return marks

    def _add(self, statement: Any, marks: List[Mark]) -> None:
        if marks:
            self.at.setdefault(id(statement), []).extend(marks)

    def predecessors(self, label: int) -> List[int]:
        return self._blocks[label].predecessors


def _has_no_line(statement: Any) -> bool:
    return isinstance(statement, ir.Del) or (isinstance(statement, ir.Assign) and isinstance(statement.value, ir.Arg))


def _part_of(statement: Any) -> Optional[Any]:
    is_value = isinstance(statement, ir.Assign) and isinstance(statement.value, (ir.Const, ir.Global, ir.FreeVar))
    part = statement.value.value if is_value else None
    return part if hasattr(getattr(part, "func_ir", None), PART) else None


def _machinery_of_try(block: Any) -> Set[int]:
    """Identities of the statements that Numba adds for `try`, and the branches on whether there was an exception:
    those have the next line."""
    names, found = set(), set()
    for statement in block.body:
        if isinstance(statement, ir.Assign):
            value = statement.value
            is_its = isinstance(value, (ir.Global, ir.FreeVar)) and getattr(value.value, "__name__", "") in _MACHINERY
            is_call = isinstance(value, ir.Expr) and value.op == "call" and value.func.name in names
            if is_its or is_call:
                names.add(statement.target.name)
                found.add(id(statement))
        elif isinstance(statement, ir.Branch) and statement.cond.name in names:
            found.add(id(statement))
    return found


def _chain(frame: Optional[Inlined]) -> List[Inlined]:
    """From the outermost inlined call to this one."""
    chain: List[Inlined] = []
    while frame is not None:
        chain.append(frame)
        frame = frame.call.frame
    return chain[::-1]


def entered_within(code: Any) -> FrozenSet[int]:
    """The lines to which a function jumps, but not to their beginning. Since Python 3.10 all has the line it belongs
    to."""
    if sys.version_info >= (3, 10):
        return frozenset()
    starts = dict(dis.findlinestarts(code))
    return frozenset(
        starts[max(start for start in starts if start < target)]
        for target in dis.findlabels(code.co_code)
        if target not in starts
    )


class Function:
    """What is lowered: a function of the user's, a part of one, or one that is generated around the user's
    statements."""

    def __init__(
        self, code: Code, measured: Callable[[str], Optional[str]], generated: Optional[Position] = None
    ) -> None:
        self.code = code
        self.measured = measured
        self.outside = Position(None, -code.first)
        # A lifted loop, or the body of a `with objmode`.
        self.is_part = False
        # Lines that are jumped to, not at their beginning.
        self.entered: FrozenSet[int] = frozenset()
        # The position of generated statements.
        self._generated = generated
        self.before: Optional[Position] = generated or self.outside
        self.after_return: Optional[Position] = generated or self.outside

    def position(self, loc: Any) -> Optional[Position]:
        """Of a statement; `None` if it has no line that runs there."""
        place = place_of(loc)
        first = self.code.first if place.frame is None else place.frame.first
        if place.line < 1:
            return None
        if place.filename == "<string>" and self._generated is not None:
            return self._generated
        if place.line == first and not self._is_expression(place.frame):
            return None
        whose = self.code.path if place.frame is None else place.frame.filename
        return Position(place.frame, place.line) if place.filename == whose else None

    def _is_expression(self, frame: Optional[Inlined]) -> bool:
        """Whether it is one that begins with its body: `<lambda>`, `<listcomp>`. Elsewhere, what has the first line
        is no statement."""
        return (self.code.name if frame is None else frame.name).endswith(">")
