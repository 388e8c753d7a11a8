"""Lines that CPython's tracing reports while a function's bytecode runs. coverage.py records the steps between them.

    step    from one line to the next; a negative line is the entry or the exit of the function with that first line
    block   instructions between two jumps, named by the offset of the first one, as in Numba

The interpreter reports a line when it differs from the last one. Compilers give the same line to several blocks, or
none at all: a block without lines keeps the last line of the block before it. Before Python 3.10, a jump to the middle
of a line is reported only if it goes backwards, or if it is that of an exception.
"""

from __future__ import annotations

import dis
import sys
from typing import Any, Collection, Dict, Iterator, List, Mapping, NamedTuple, Optional, Set, Tuple

Step = Tuple[int, int]
Steps = Tuple[Step, ...]

#: Numba puts a `NOP` in front of the bytecode.
_SHIFT = 2
# Instructions that are not traced, although they have a line.
_UNTRACED = frozenset({"RESUME", "CACHE", "PRECALL", "END_FOR", "END_SEND", "GEN_START"})
_NEVER_RAISE = frozenset(
    """POP_BLOCK POP_TOP POP_EXCEPT NOP JUMP_FORWARD JUMP_ABSOLUTE JUMP_BACKWARD
    LOAD_CONST LOAD_FAST STORE_FAST DUP_TOP ROT_TWO ROT_THREE ROT_FOUR""".split()
)
_EXITS = frozenset({"RETURN_CONST", "RERAISE"})
_REPORTS_MIDDLE = sys.version_info >= (3, 10)
_SKIPS_POP_AFTER_LOOP = sys.version_info >= (3, 13)


class LineStart(NamedTuple):
    offset: int
    line: int


class BlockLines(NamedTuple):
    """Lines of a block, in the order in which they begin."""

    starts: Tuple[LineStart, ...] = ()
    # True if the first line is only reported after a jump backwards or an exception.
    starts_midway: bool = False

    @property
    def certain_starts(self) -> Tuple[LineStart, ...]:
        return self.starts[1:] if self.starts_midway else self.starts


class LineTable:
    """Lines of a function's instructions."""

    def __init__(self, code: Any) -> None:
        self._lines: Dict[int, int] = {}
        self._starts: Set[int] = set()
        for start, end, line in _line_ranges(code):
            if line is not None and line > 0:
                self._starts.add(start + _SHIFT)
                self._lines.update(dict.fromkeys(range(start + _SHIFT, end + _SHIFT, 2), line))

    def lines_of_block(self, instructions: Mapping[int, Any], label: int, labels: Collection[int]) -> BlockLines:
        """Returns the lines of the block with this label. `instructions` are Numba's, by offset."""
        starts: List[LineStart] = []
        starts_midway = False
        is_before_first = label == 0
        for instruction in _instructions_of_block(instructions, label, labels):
            if is_before_first and instruction.opname in ("RESUME", "GEN_START"):
                # What comes before, such as the creation of cells, is not traced.
                starts.clear()
                is_before_first = False
                continue
            offset = instruction.offset
            line = self._lines.get(offset)
            if line is None or instruction.opname in _UNTRACED or (starts and starts[-1].line == line):
                continue
            if _SKIPS_POP_AFTER_LOOP and _follows_loop(instructions, label, offset):
                continue
            if not _REPORTS_MIDDLE and offset not in self._starts:
                if offset != label:
                    continue
                starts_midway = True
            starts.append(LineStart(offset, line))
        return BlockLines(tuple(starts), starts_midway)

    def reports_exception(self, instructions: Mapping[int, Any], label: int, labels: Collection[int]) -> bool:
        """Returns true if an exception in the block's last instruction makes the line of its handler reported, even in
        the middle of that line. Before Python 3.10, that is not so at the start of a line and in the first line."""
        if _REPORTS_MIDDLE:
            return True
        *_, last = _instructions_of_block(instructions, label, labels)
        start = max((start for start in self._starts if start <= last.offset), default=_SHIFT)
        return start not in (last.offset, _SHIFT)


def _line_ranges(code: Any) -> Iterator[Tuple[int, int, Optional[int]]]:
    if hasattr(code, "co_lines"):
        yield from code.co_lines()
        return
    starts = list(dis.findlinestarts(code))
    ends = [start for start, _ in starts[1:]] + [len(code.co_code)]
    for (start, line), end in zip(starts, ends):
        yield start, end, line


def _instructions_of_block(instructions: Mapping[int, Any], label: int, labels: Collection[int]) -> Iterator[Any]:
    offset = label
    while offset in instructions and (offset == label or offset not in labels):
        instruction = instructions[offset]
        yield instruction
        is_jump = instruction.is_jump and not instruction.opname.startswith("SETUP_")
        if is_jump or instruction.is_terminator or instruction.opname in _EXITS:
            return
        offset = instruction.next


def can_raise(instructions: Mapping[int, Any], label: int, labels: Collection[int]) -> bool:
    """Returns false if no instruction of the block can raise an exception."""
    return any(each.opname not in _NEVER_RAISE for each in _instructions_of_block(instructions, label, labels))


def _follows_loop(instructions: Mapping[int, Any], label: int, offset: int) -> bool:
    """Returns true for the `POP_TOP` that `FOR_ITER` skips when the loop ends."""
    first = instructions[label]
    return bool(first.opname == "END_FOR" and offset == first.next)


def cleanup_lines(code: Any) -> Dict[int, Steps]:
    """Maps lines in a `with` or a comprehension to the steps that an exception takes from there to the cleanup of each
    of them, before it leaves the function."""
    lines = {offset: line for start, end, line in _line_ranges(code) if line for offset in range(start, end, 2)}
    operations = {instruction.offset: instruction.opname for instruction in dis.get_instructions(code)}
    handlers = _handlers(code)
    handlers_of_line: Dict[int, Set[Optional[int]]] = {}
    for offset, line in lines.items():
        handlers_of_line.setdefault(line, set()).add(handlers.get(offset))
    found: Dict[int, Steps] = {}
    for offset in sorted(handlers.keys() & lines.keys()):
        # A `finally` block has a second copy, for exceptions. An exception that leaves the first copy takes no steps.
        if operations.get(handlers[offset]) == "COPY" and len(handlers_of_line[lines[offset]]) > 1:
            continue
        steps: List[Step] = []
        line, handler = lines[offset], handlers.get(offset)
        while handler is not None and _is_cleanup(operations, handler):
            start = handler
            while start not in lines and operations.get(start) != "RERAISE" and start < len(code.co_code):
                start += 2
            before, line = line, lines.get(start, line)
            # The same line is reported again after instructions without a line, and before Python 3.10 always.
            if line != before or not _REPORTS_MIDDLE or (start != handler and start in lines):
                steps.append((before, line))
            handler = handlers.get(handler)
        found.setdefault(lines[offset], tuple(steps))
    return found


def _handlers(code: Any) -> Dict[int, int]:
    """Maps the offset of an instruction to that of its innermost handler."""
    entries = getattr(dis.Bytecode(code), "exception_entries", None)
    if entries is not None:
        ranges = [(entry.start, entry.end, entry.target) for entry in entries]
    else:
        setups = [each for each in dis.get_instructions(code) if each.opname == "SETUP_WITH"]
        ranges = [(setup.offset + 2, setup.argval, setup.argval) for setup in setups]
    return {offset: target for start, end, target in ranges for offset in range(start, end, 2)}


def _is_cleanup(operations: Mapping[int, str], handler: int) -> bool:
    """Returns false for the handler of a `try`, which Numba translates."""
    names = [name for name in (operations.get(handler), operations.get(handler + 2)) if name != "PUSH_EXC_INFO"]
    return names[0] in ("WITH_EXCEPT_START", "SWAP", "COPY")


class Flow:
    """Steps of a function, along the edges between its blocks and within them."""

    def __init__(
        self,
        first_line: int,
        entry: int,
        lines: Mapping[int, BlockLines],
        successors: Mapping[int, List[int]],
        raising: Collection[int],
        reported: Collection[Tuple[int, int]] = (),
    ) -> None:
        self._outside = -first_line
        self._entry = entry
        self._lines = lines
        self._successors = successors
        # Edges of exceptions into the middle of a line that is reported.
        self._reported = reported
        # Blocks without lines where the program may not go on to the next block's line: an exception may leave them, or
        # they have several successors.
        self._junctions = {label for label, targets in successors.items() if len(targets) > 1 or label in raising}
        # Possible last lines before each junction.
        self._lines_before: Dict[int, Set[int]] = {}
        self._find_lines_before()
        # Without a single last line, the steps after a junction are less exact.
        self._junctions -= {
            label for label, found in self._lines_before.items() if len(found) > 1 and len(successors[label]) == 1
        }
        self._lines_before.clear()
        self._find_lines_before()

    def steps_at_entry(self) -> Steps:
        return self._follow(self._outside, self._entry, self._entry)[0]

    def steps_on_edge(self, source: int, target: int) -> Steps:
        """Returns the steps that the program takes when it goes from one block to the next."""
        starts = self._lines[source].certain_starts
        if starts:
            return self._follow(starts[-1].line, source, target)[0]
        last_lines = self._lines_before.get(source, set())
        block = self._lines[source]
        if block.starts_midway and block.starts[0].line in last_lines:
            # Jumps to the middle of a line are part of its statement, which may have several lines.
            last_lines = {block.starts[0].line}
        paths = {self._follow(line, source, target)[0] for line in last_lines}
        if len(paths) > 1:
            # The line before is unknown.
            return tuple(dict.fromkeys((0, line) for steps in paths for _, line in steps if line > 0))
        return paths.pop() if paths else ()

    def steps_within(self, label: int) -> List[Tuple[int, Step]]:
        """Returns the steps within a block, each with the offset at which its line begins."""
        starts = self._lines[label].certain_starts
        return [(start.offset, (before.line, start.line)) for before, start in zip(starts, starts[1:])]

    def step_at_exit(self, label: int) -> Steps:
        starts = self._lines[label].certain_starts
        return ((starts[-1].line, self._outside),) if starts and not self._successors[label] else ()

    def _find_lines_before(self) -> None:
        worklist = [(self._outside, self._entry, self._entry)]
        for label, block in self._lines.items():
            if block.certain_starts:
                line = block.certain_starts[-1].line
                worklist += [(line, label, target) for target in self._successors[label]]
        while worklist:
            _, junction, line = self._follow(*worklist.pop())
            if junction is not None and line not in self._lines_before.setdefault(junction, set()):
                self._lines_before[junction].add(line)
                worklist += [(line, junction, target) for target in self._successors[junction]]

    def _follow(self, line: int, source: int, target: int) -> Tuple[Steps, Optional[int], int]:
        """Follows the program from a line along an edge, through blocks without lines. Returns the steps up to the
        first line that the next block begins with, or up to a junction; that junction; and the last line. After a jump
        backwards, the same line is a step, too."""
        steps: List[Step] = []
        visited = set()
        while target not in visited:
            visited.add(target)
            block, goes_back = self._lines[target], target <= source
            for start in block.starts[:1]:
                if block.starts_midway and not (goes_back or (source, target) in self._reported):
                    continue
                if start.line != line or goes_back:
                    steps.append((line, start.line))
                line = start.line
            if block.certain_starts:
                first = block.certain_starts[0].line
                if block.starts_midway and first != line:
                    steps.append((line, first))
                return tuple(steps), None, first
            successors = self._successors[target]
            if not successors:
                return (*steps, (line, self._outside)), None, line
            if target in self._junctions:
                return tuple(steps), target, line
            source, target = target, successors[0]
        return tuple(steps), None, line
