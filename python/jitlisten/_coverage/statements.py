"""Marks as statements of Numba's intermediate representation.

They are inserted when Numba has translated a function's bytecode. From then on, Numba's passes treat them as any other
statement: an inlined function brings its marks, a pruned branch loses them, the body of a parallel loop takes them into
its kernel. A block that contains a mark is never removed as a mere jump.
"""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from numba.core import ir, typeinfer
from numba.core.ir_utils import rename_labels

from .bytecode import BlockLines, Flow, LineTable, Step, Steps, can_raise, cleanup_lines
from .marks import Mark

# Factors between Numba's labels and those of the blocks with marks, which leave room for each block's two edges. Numba
# infers types and lowers in the order of the labels: a variable must be assigned before it is used. The order of sets
# of labels decides whether Numba compiles some functions, so there are several factors to try.
SPACINGS = (3, 4, 8, 11)

# Steps of exceptions through cleanup, by line, of each function that has been translated with marks. The key is the
# function's path and first line.
translated: Dict[Tuple[str, int], Mapping[int, Steps]] = {}


class MarkStatement(ir.Stmt):  # type: ignore[misc]
    """Stores a mark."""

    def __init__(self, mark: Mark, loc: Any, is_on_edge: bool = False) -> None:
        self.mark, self.loc = mark, loc
        # True if the statement's block was created for an edge.
        self.is_on_edge = is_on_edge

    def list_vars(self) -> List[Any]:
        return []

    def __str__(self) -> str:
        return "mark %d>%d" % self.mark[1:]


class EdgeMarks(ir.Stmt):  # type: ignore[misc]
    """Marks of the two edges of the branch that follows. Only in object mode: Numba's passes on typed code may replace
    the branch."""

    def __init__(self, on_true: List[MarkStatement], on_false: List[MarkStatement], loc: Any) -> None:
        self.on_true, self.on_false, self.loc = on_true, on_false, loc

    def list_vars(self) -> List[Any]:
        return []

    def __str__(self) -> str:
        return "marks of edges"


def _infer_nothing(statement: MarkStatement, inferer: Any) -> None:
    pass


typeinfer.typeinfer_extensions[MarkStatement] = _infer_nothing


class Offsets:
    """Bytecode offset of each statement, by its location: each instruction has a location of its own."""

    def __init__(self) -> None:
        self._offsets: Dict[int, int] = {}
        # Kept alive, so that identities stay unique.
        self._locs: List[Any] = []

    def add(self, loc: Any, offset: int) -> None:
        self._locs.append(loc)
        self._offsets[id(loc)] = offset

    def of(self, statement: Any) -> int:
        """Returns -1 for a statement that Numba adds."""
        return self._offsets.get(id(statement.loc), -1)


def insert_marks(interpreter: Any, func_ir: Any, path: str, offsets: Offsets, spacing: int) -> None:
    """Inserts the marks of a function that Numba has just translated."""
    inserter = _Inserter(interpreter, func_ir, path, offsets, spacing)
    func_ir.blocks = inserter.make_blocks()
    translated[path, interpreter.func_id.firstlineno] = cleanup_lines(interpreter.func_id.code)


def without_edge_blocks(blocks: Dict[int, Any], spacing: int) -> Dict[int, Any]:
    """Returns the blocks without those that were created for edges, with Numba's own labels. A statement before the
    branch has the marks of its edges."""
    if not any(_marks_of(block) for block in blocks.values()):
        return blocks
    edges = {label: block for label, block in blocks.items() if _is_edge(block)}
    numbas_labels = _without_spacing(sorted(blocks.keys() - edges.keys()), spacing)

    def numbas_label(label: int) -> int:
        return numbas_labels[edges[label].body[-1].target if label in edges else label]

    changed = {}
    for label, block in blocks.items():
        if label in edges:
            continue
        branch = block.body[-1]
        changed[numbas_label(label)] = copied = block.copy()
        copied.body = [_with_labels(statement, numbas_label) for statement in block.body]
        if isinstance(branch, ir.Branch) and not edges.keys().isdisjoint(branch.get_targets()):
            on_true, on_false = (_marks_of(edges.get(side)) for side in (branch.truebr, branch.falsebr))
            copied.body.insert(-1, EdgeMarks(on_true, on_false, branch.loc))
    return changed


def with_edge_blocks(blocks: Mapping[int, Any]) -> Dict[int, Any]:
    """Reverses `without_edge_blocks`."""
    changed = dict(blocks)
    free = max(blocks) + 1
    for label, block in blocks.items():
        if len(block.body) < 2 or not isinstance(block.body[-2], EdgeMarks):
            continue
        edge_marks, branch = block.body[-2:]
        sides = []
        for marks, target in (edge_marks.on_true, branch.truebr), (edge_marks.on_false, branch.falsebr):
            if marks:
                changed[free] = ir.Block(block.scope, branch.loc)
                changed[free].body = [*marks, ir.Jump(target, branch.loc)]
                target, free = free, free + 1
            sides.append(target)
        changed[label] = block.copy()
        changed[label].body[-2:] = [ir.Branch(branch.cond, *sides, branch.loc)]
    # Numba requires that the labels are in the order of the program.
    return rename_labels(changed)  # type: ignore[no-any-return]


def _is_edge(block: Any) -> bool:
    statements = [statement for statement in block.body[:-1] if not isinstance(statement, ir.Del)]
    return bool(statements) and all(getattr(statement, "is_on_edge", False) for statement in statements)


def _marks_of(block: Optional[Any]) -> List[MarkStatement]:
    return [statement for statement in block.body if isinstance(statement, MarkStatement)] if block is not None else []


class _Inserter:
    def __init__(self, interpreter: Any, func_ir: Any, path: str, offsets: Offsets, spacing: int) -> None:
        code = interpreter.func_id.code
        self._spacing = spacing
        self._blocks: Mapping[int, Any] = func_ir.blocks
        self._loc, self._path, self._offsets = func_ir.loc, path, offsets
        table, labels, instructions = LineTable(code), interpreter.cfa.blocks, interpreter.bytecode.table
        self._successors: Dict[int, List[int]] = {}
        for label, block in self._blocks.items():
            terminator = block.body[-1]
            self._successors[label] = list(dict.fromkeys(terminator.get_targets()))
            # In a `try`, Numba adds a branch to the handler to each block.
            if _is_exception_check(terminator) and label in labels and not can_raise(instructions, label, labels):
                self._successors[label] = [terminator.falsebr]
        # Numba splits blocks at the end of a `with`. The new blocks have labels of their own.
        lines = {
            label: table.lines_of_block(instructions, label, labels) if label in labels else BlockLines()
            for label in self._blocks
        }
        self._entry = min(self._blocks)
        raising = {label for label in labels if can_raise(instructions, label, labels)}
        handlers = {label: handler for label in raising for handler in _handlers(self._blocks.get(label))}
        reported = [edge for edge in handlers.items() if table.reports_exception(instructions, edge[0], labels)]
        self._flow = Flow(code.co_firstlineno, self._entry, lines, self._successors, raising, reported)

    def make_blocks(self) -> Dict[int, Any]:
        """Returns the changed and the new blocks."""
        at_start: Dict[int, Steps] = {self._entry: self._flow.steps_at_entry()}
        at_end: Dict[int, Steps] = {label: self._flow.step_at_exit(label) for label in self._blocks}
        on_edge: Dict[Tuple[int, int], Steps] = {}
        edges_into: Dict[int, List[Tuple[int, int]]] = {}
        for source, targets in self._successors.items():
            for target in targets:
                edges_into.setdefault(target, []).append((source, target))
        for target, edges in edges_into.items():
            steps = {edge: self._flow.steps_on_edge(*edge) for edge in edges}
            begins_with = _begins_with(self._blocks[target])
            if begins_with:
                within = tuple(step for _, step in self._flow.steps_within(target))
                steps = {edge: path + within for edge, path in steps.items()}
            if len(set(steps.values())) == 1 and target != self._entry and not begins_with:
                at_start[target] = steps[edges[0]]
                continue
            for source, _ in edges:
                if len(self._successors[source]) == 1 and not _begins_with(self._blocks[source]):
                    at_end[source] += steps[source, target]
                elif steps[source, target]:
                    on_edge[source, target] = steps[source, target]
        changed = {
            self._spaced(label): self._make_block(label, at_start.get(label, ()), at_end[label])
            for label in self._blocks
        }
        for (source, target), steps_of_edge in on_edge.items():
            branch = changed[self._spaced(source)].body[-1]
            edge = ir.Block(self._blocks[source].scope, branch.loc)
            marks = [self._make_mark(step, is_on_edge=True) for step in steps_of_edge]
            edge.body = [*marks, ir.Jump(self._spaced(target), branch.loc)]
            free = self._spaced(source) + 1
            if free in changed:
                free += 1
            changed[free] = edge
            changed[self._spaced(source)].body[-1] = _redirect(branch, {self._spaced(target): free})
        return changed

    def _make_block(self, label: int, at_start: Steps, at_end: Steps) -> Any:
        """Returns the block with its marks. Numba's passes expect that nothing is between a call of `range` and its
        `getiter`, and between a `cast` and its `return`."""
        block = self._blocks[label]
        body: List[Any] = []
        pending = [] if _begins_with(block) else self._flow.steps_within(label)
        starts_pending = True
        for statement in block.body[:-1]:
            if starts_pending and not _is_argument(statement):
                body += map(self._make_mark, at_start)
                starts_pending = False
            # Numba ends a `try` at the beginning of the block, at the location of the last instruction.
            offset = -1 if _ends_try(statement) else self._offsets.of(statement)
            place = len(body) - 1 if body and _is_expression(statement, "getiter") else len(body)
            while pending and offset >= pending[0][0]:
                body.insert(place, self._make_mark(pending.pop(0)[1]))
                place += 1
            body.append(_with_labels(statement, self._spaced))
        rest = (at_start if starts_pending else ()) + tuple(step for _, step in pending) + at_end
        place = len(body) - 1 if body and _is_expression(body[-1], "cast") else len(body)
        body[place:place] = map(self._make_mark, rest)
        changed = ir.Block(block.scope, block.loc)
        changed.body = body + [_with_labels(block.body[-1], self._spaced)]
        return changed

    def _make_mark(self, step: Step, is_on_edge: bool = False) -> MarkStatement:
        source, target = step
        loc = self._loc.with_lineno(target if target > 0 else source)
        return MarkStatement(Mark(self._path, source, target), loc, is_on_edge)

    def _spaced(self, label: int) -> int:
        return label * self._spacing


def _begins_with(block: Any) -> bool:
    """Returns true for the first block of a `with`, which Numba requires to contain nothing else."""
    return any(isinstance(statement, ir.EnterWith) for statement in block.body)


def _is_exception_check(terminator: Any) -> bool:
    return isinstance(terminator, ir.Branch) and terminator.cond.name.startswith("$exception_check")


def _handlers(block: Optional[Any]) -> List[int]:
    """Returns the label of the handler of the block's exceptions, if the block is in a `try`."""
    if block is None:
        return []
    if _is_exception_check(block.body[-1]):
        return [block.body[-1].truebr]
    raises = any(isinstance(statement, ir.TryRaise) for statement in block.body)
    return list(block.body[-1].get_targets()) if raises else []


def _is_argument(statement: Any) -> bool:
    return isinstance(statement, ir.Assign) and isinstance(statement.value, ir.Arg)


def _ends_try(statement: Any) -> bool:
    return isinstance(statement, ir.Assign) and "end_try_block" in statement.target.name


def _is_expression(statement: Any, operator: str) -> bool:
    value = getattr(statement, "value", None)
    return isinstance(statement, ir.Assign) and isinstance(value, ir.Expr) and value.op == operator


def _without_spacing(labels: List[int], spacing: int) -> Dict[int, int]:
    """Maps labels to those without marks: sets of labels decide by their order which loops Numba can lift. Numba gives
    the blocks that it adds the next free labels."""
    numbas_labels: Dict[int, int] = {}
    last = -1
    are_added = False
    for label in labels:
        are_added = are_added or label % spacing != 0
        last = last + 1 if are_added else label // spacing
        numbas_labels[label] = last
    return numbas_labels


def _with_labels(statement: Any, relabel: Callable[[int], int]) -> Any:
    """Returns a statement that refers to other labels."""
    if isinstance(statement, ir.EnterWith):
        statement = copy.copy(statement)
        statement.begin, statement.end = relabel(statement.begin), relabel(statement.end)
        return statement
    if isinstance(statement, (ir.Jump, ir.Branch)):
        return _redirect(statement, {target: relabel(target) for target in statement.get_targets()})
    return statement


def _redirect(terminator: Any, labels: Mapping[int, int]) -> Any:
    """Returns a terminator with other labels."""
    if isinstance(terminator, ir.Jump):
        return ir.Jump(labels.get(terminator.target, terminator.target), terminator.loc)
    sides = [labels.get(side, side) for side in (terminator.truebr, terminator.falsebr)]
    return ir.Branch(terminator.cond, *sides, terminator.loc)
