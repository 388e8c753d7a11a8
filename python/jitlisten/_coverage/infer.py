"""Infers the coverage of statements and arcs that have no code of their own, with the control-flow graph that
coverage.py builds of a source file.

A line on every path to a covered line (a dominator) is covered, too: `pass`, `try:`, `while True:`, an `if` that was
decided by types. If a covered line has a single covered predecessor, the arc between them is covered.
"""

from __future__ import annotations

import ast
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

Arc = Tuple[int, int]

# Includes `try ... except*`, since Python 3.11.
_TRY_NODES = tuple(getattr(ast, name) for name in ("Try", "TryStar") if hasattr(ast, name))
_MAX_PATH_LINES = 6


class SourceGraph:
    """Control-flow graph of one source file."""

    def __init__(self, text: str, path: str) -> None:
        from coverage.parser import PythonParser

        self._parser: Any = PythonParser(text=text, filename=path)
        self._parser.parse_source()
        self._successors: Dict[int, Set[int]] = {}
        self._predecessors: Dict[int, Set[int]] = {}
        for predecessor, successor in self._parser.arcs():
            self._successors.setdefault(predecessor, set()).add(successor)
            self._predecessors.setdefault(successor, set()).add(predecessor)
        # These also contain edges into exception handlers, which are not arcs for coverage.py.
        self._all_successors = {line: set(successors) for line, successors in self._successors.items()}
        self._all_predecessors = {line: set(predecessors) for line, predecessors in self._predecessors.items()}
        # Dominators of each line, including the line itself.
        self._dominators: Dict[int, Set[int]] = {}
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, _TRY_NODES):
                self._add_handlers(node)
        for function in _functions(tree):
            self._find_dominators(function)

    def _add_handlers(self, node: Any) -> None:
        """Adds edges to the handlers from each statement below `try`, because any of them may raise."""
        handler_lines = [handler.lineno for handler in node.handlers] + [
            statement.lineno for statement in node.finalbody[:1]
        ]
        raising_nodes = [node] + [
            descendant
            for part in (node.body, node.handlers, node.orelse)
            for statement in part
            for descendant in ast.walk(statement)
        ]
        for line in {
            self._parser.first_line(raising_node.lineno)
            for raising_node in raising_nodes
            if isinstance(raising_node, (ast.stmt, ast.excepthandler))
        }:
            for handler_line in handler_lines:
                self._all_successors.setdefault(line, set()).add(handler_line)
                self._all_predecessors.setdefault(handler_line, set()).add(line)

    def _find_dominators(self, function: Any) -> None:
        entry = _first_statement(function)
        if entry is None:
            return
        entry = self._parser.first_line(entry)
        nodes, worklist = [], [entry]
        dominators: Dict[int, Set[int]] = {}
        while worklist:
            node = worklist.pop()
            if node not in dominators and function.lineno < node <= function.end_lineno:
                nodes.append(node)
                dominators[node] = set()
                worklist += sorted(self._all_successors.get(node, ()))
        all_nodes = set(nodes)
        dominators = {node: all_nodes for node in nodes}
        dominators[entry] = {entry}
        changed = True
        while changed:
            changed = False
            for node in nodes:
                incoming = [
                    dominators[predecessor]
                    for predecessor in self._all_predecessors.get(node, ())
                    if predecessor in dominators
                ]
                updated = (set.intersection(*incoming) if incoming else set()) | {node}
                if node != entry and updated != dominators[node]:
                    dominators[node], changed = updated, True
        for node in nodes:
            self._dominators[node] = (
                self._dominators[node] & dominators[node] if node in self._dominators else dominators[node]
            )

    def lines(self, lines: Set[int]) -> Set[int]:
        """Infers all executed lines from some executed lines."""
        executed = set(self._parser.translate_lines(lines))
        for line in list(executed):
            executed |= self._dominators.get(line, set())
        return executed

    def arcs(self, known_arcs: Set[Arc], lines: Set[int], lines_with_code: Set[int]) -> Set[Arc]:
        """Infers all executed arcs from some executed arcs and the executed lines."""
        arcs = {(self._parser.first_line(source), self._parser.first_line(target)) for source, target in known_arcs}
        marked_lines = {self._parser.first_line(line) for line in lines_with_code}
        for source, target in list(arcs):
            if target not in self._successors.get(source, ()):
                arcs |= self._path_without_code(
                    source, target, {line for line in lines if self._may_lack_code(line, marked_lines)}
                )
        for target in self._dominators:
            predecessors = [line for line in self._all_predecessors.get(target, ()) if line in lines]
            if target in lines and len(predecessors) == 1 and target in self._successors.get(predecessors[0], ()):
                arcs.add((predecessors[0], target))
        return arcs

    def _path_without_code(self, source: int, target: int, passable_lines: Set[int]) -> Set[Arc]:
        """Returns the arcs of the only path between two lines through lines without code; empty if that path is not
        unique."""
        paths: List[List[int]] = []
        worklist = [[source]]
        while worklist and len(paths) < 2:
            path = worklist.pop()
            for line in self._successors.get(path[-1], ()):
                if line == target and len(path) > 1:
                    paths.append(path + [target])
                elif line in passable_lines and line not in path and len(path) < _MAX_PATH_LINES:
                    worklist.append(path + [line])
        return set(zip(paths[0], paths[0][1:])) if len(paths) == 1 else set()

    def _may_lack_code(self, line: int, marked: Set[int]) -> bool:
        return line not in marked or len(self._successors.get(line, ())) == 1


def _functions(tree: Any) -> Iterator[Any]:
    return (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def _first_statement(function: Any) -> Optional[int]:
    for statement in function.body:
        is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not is_docstring:
            return int(statement.lineno)
    return None


_graphs: Dict[str, Tuple[str, Optional[SourceGraph]]] = {}


def source_graph(path: str, digest: str) -> Optional[SourceGraph]:
    """Returns the graph of a file; `None` if coverage.py cannot read it."""
    cached = _graphs.get(path)
    if cached is None or cached[0] != digest:
        try:
            from coverage.python import get_python_source

            graph: Optional[SourceGraph] = SourceGraph(get_python_source(path), path)
        except Exception:
            graph = None
        cached = _graphs[path] = (digest, graph)
    return cached[1]
