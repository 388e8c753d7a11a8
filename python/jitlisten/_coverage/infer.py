"""Statements that have no code of their own, and arcs out of them, from those that have: with the graph that
coverage.py makes of a text.

What every path to a covered line passes is covered (the line's dominators): `pass`, `try:`, `while True:`, an `if`
that was decided
by types. And where a covered line has a single covered predecessor, the program came from there.
"""

from __future__ import annotations

import ast
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

Arc = Tuple[int, int]

# With `try ... except*`, since Python 3.11.
_TRIES = tuple(getattr(ast, name) for name in ("Try", "TryStar") if hasattr(ast, name))
_LONGEST_WAY = 6


class Text:
    """The facts about one source file."""

    def __init__(self, text: str, path: str) -> None:
        from coverage.parser import PythonParser

        self._parser: Any = PythonParser(text=text, filename=path)
        self._parser.parse_source()
        self._successors: Dict[int, Set[int]] = {}
        self._predecessors: Dict[int, Set[int]] = {}
        for before, after in self._parser.arcs():
            self._successors.setdefault(before, set()).add(after)
            self._predecessors.setdefault(after, set()).add(before)
        # With the ways into handlers, which coverage.py does not ask about.
        self._all_successors = {line: set(after) for line, after in self._successors.items()}
        self._all_predecessors = {line: set(before) for line, before in self._predecessors.items()}
        # By line: itself and what is passed on every path to it.
        self._passed: Dict[int, Set[int]] = {}
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, _TRIES):
                self._add_handlers(node)
        for function in _functions(tree):
            self._find_dominators(function)

    def _add_handlers(self, node: Any) -> None:
        """Each statement below `try` may raise an exception."""
        handlers = [handler.lineno for handler in node.handlers] + [
            statement.lineno for statement in node.finalbody[:1]
        ]
        raising = [node] + [
            each for part in (node.body, node.handlers, node.orelse) for top in part for each in ast.walk(top)
        ]
        for line in {
            self._parser.first_line(each.lineno) for each in raising if isinstance(each, (ast.stmt, ast.excepthandler))
        }:
            for handler in handlers:
                self._all_successors.setdefault(line, set()).add(handler)
                self._all_predecessors.setdefault(handler, set()).add(line)

    def _find_dominators(self, function: Any) -> None:
        entry = _first_statement(function)
        if entry is None:
            return
        entry = self._parser.first_line(entry)
        nodes, todo = [], [entry]
        found: Dict[int, Set[int]] = {}
        while todo:
            node = todo.pop()
            if node not in found and function.lineno < node <= function.end_lineno:
                nodes.append(node)
                found[node] = set()
                todo += sorted(self._all_successors.get(node, ()))
        everything = set(nodes)
        found = {node: everything for node in nodes}
        found[entry] = {entry}
        changes = True
        while changes:
            changes = False
            for node in nodes:
                before = [found[each] for each in self._all_predecessors.get(node, ()) if each in found]
                now = (set.intersection(*before) if before else set()) | {node}
                if node != entry and now != found[node]:
                    found[node], changes = now, True
        for node in nodes:
            self._passed[node] = self._passed[node] & found[node] if node in self._passed else found[node]

    def lines(self, lines: Set[int]) -> Set[int]:
        """All lines that have run if these have."""
        run = set(self._parser.translate_lines(lines))
        for line in list(run):
            run |= self._passed.get(line, set())
        return run

    def arcs(self, seen: Set[Arc], lines: Set[int], with_code: Set[int]) -> Set[Arc]:
        """All arcs that the program has gone if it has gone these, and run these lines."""
        found = {(self._parser.first_line(before), self._parser.first_line(after)) for before, after in seen}
        marked = {self._parser.first_line(line) for line in with_code}
        for before, after in list(found):
            if after not in self._successors.get(before, ()):
                found |= self._without_code(
                    before, after, {line for line in lines if self._may_lack_code(line, marked)}
                )
        for after in self._passed:
            run = [line for line in self._all_predecessors.get(after, ()) if line in lines]
            if after in lines and len(run) == 1 and after in self._successors.get(run[0], ()):
                found.add((run[0], after))
        return found

    def _without_code(self, before: int, after: int, passed: Set[int]) -> Set[Arc]:
        """The way from one line to another over lines that have no code there, if there is exactly one."""
        found: List[List[int]] = []
        todo = [[before]]
        while todo and len(found) < 2:
            way = todo.pop()
            for line in self._successors.get(way[-1], ()):
                if line == after and len(way) > 1:
                    found.append(way + [after])
                elif line in passed and line not in way and len(way) < _LONGEST_WAY:
                    todo.append(way + [line])
        return set(zip(found[0], found[0][1:])) if len(found) == 1 else set()

    def _may_lack_code(self, line: int, marked: Set[int]) -> bool:
        return line not in marked or len(self._successors.get(line, ())) == 1


def _functions(tree: Any) -> Iterator[Any]:
    return (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def _first_statement(function: Any) -> Optional[int]:
    for statement in function.body:
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not is_text:
            return int(statement.lineno)
    return None


_texts: Dict[str, Tuple[str, Optional[Text]]] = {}


def text_of(path: str, digest: str) -> Optional[Text]:
    """`None` if coverage.py does not read the file."""
    known = _texts.get(path)
    if known is None or known[0] != digest:
        try:
            from coverage.python import get_python_source

            text: Optional[Text] = Text(get_python_source(path), path)
        except Exception:
            text = None
        known = _texts[path] = (digest, text)
    return known[1]
