"""Reports on recordings: the output of ``jitlisten lines``, as data."""

import importlib
import json
import os
import subprocess
import sys
from typing import Any, Dict, Iterable, List, Tuple, Union

from . import Error
from .__main__ import command


class Report:
    """Report on one or more recordings; see :func:`jitlisten.read`."""

    def __init__(self, data: Dict[str, Any]) -> None:
        #: Complete report, as written by ``jitlisten lines --json -``.
        self.data = data

    def rows(self) -> List[Dict[str, Any]]:
        """Returns one dict for each line with samples; the keys are the columns of :meth:`lines`."""
        kinds = {(line["path"], line["line"]): line["kind"] for line in self.data["hottest"]}
        rows: List[Dict[str, Any]] = []
        for file in self.data["files"]:
            for line in file["lines"]:
                row = {"file": file["path"], "line": line["line"], "kind": kinds.get((file["path"], line["line"]))}
                for name in ("self", "total", "self_percent", "total_percent", "in_c", "source"):
                    row[name] = line[name]
                row["seconds"] = line["self_weight"] / 1e9 if self.data["is_time"] else None
                rows.append(row)
        return rows

    def thread_rows(self) -> List[Dict[str, Any]]:
        """Returns one dict for each line and thread: ``file``, ``line``, ``host``, ``rank``, ``process`` (the name of a
        worker), ``pid``, ``tid``, ``thread``, and ``self`` and ``total`` in samples and percent. Needs
        ``read(..., by_thread=True)``."""
        threads = {(thread["host"], thread["pid"], thread["tid"]): thread for thread in self.data["threads"]}
        rows: List[Dict[str, Any]] = []
        for file in self.data["files"]:
            for line in file["lines"]:
                for part in line.get("threads", ()):
                    thread = threads[part["host"], part["pid"], part["tid"]]
                    row = {"file": file["path"], "line": line["line"], "thread": thread["name"]}
                    row.update((name, thread[name]) for name in ("host", "rank", "process", "pid", "tid"))
                    row.update((name, part[name]) for name in ("self", "total", "self_percent", "total_percent"))
                    rows.append(row)
        return rows

    def by_thread(self) -> Any:
        """Returns :meth:`thread_rows` as a ``pandas.DataFrame``."""
        return _make_data_frame(self.thread_rows())

    def processes(self) -> Any:
        """Returns a ``pandas.DataFrame`` with one row for each process: ``host``, ``pid``, ``rank``, ``label``
        (rank and name of a worker), ``threads``, ``samples``, ``compiled``, ``percent``."""
        return _make_data_frame(self.data["processes"])

    def lines(self) -> Any:
        """Returns a ``pandas.DataFrame`` with one row for each line with samples.

        Columns: ``file``, ``line``, ``kind`` (``"compiled"``, ``"python"``, or nothing for Python code of a library),
        ``self`` and ``total`` in samples and percent, ``in_c`` (samples in C functions that the line called),
        ``source``, and ``seconds`` of self time (nothing if the samples do not measure time).
        """
        return _make_data_frame(self.rows())

    def functions(self) -> Any:
        """Returns a ``pandas.DataFrame`` with one row for each function with samples."""
        names = ("name", "kind", "self", "total", "self_percent", "total_percent")
        return _make_data_frame([{name: row[name] for name in names} for row in self.data["functions"]])

    def stack_rows(self) -> List[Dict[str, Any]]:
        """Returns one dict for each thread and stack: ``stack`` (names, outermost first), ``file`` and ``line`` of the
        innermost frame, ``host``, ``rank``, ``process``, ``pid``, ``tid``, ``thread``, ``samples`` and ``seconds``.
        Needs ``read(..., stacks=True)``."""
        stacks, is_time = self._stacks(), self.data["is_time"]
        nodes, samples = stacks["nodes"], stacks["samples"]
        names = [row["name"] for row in stacks["functions"]]
        files = [*stacks["files"], None]
        # Callers precede their callees.
        tuples: List[Tuple[str, ...]] = []
        for parent, function in zip(nodes["parent"], nodes["function"]):
            tuples.append((*(tuples[parent] if parent >= 0 else ()), names[function]))
        rows: List[Dict[str, Any]] = []
        columns = (samples["thread"], samples["node"], samples["samples"], samples["weight"])
        for number, node, count, weight in zip(*columns):
            thread = self.data["threads"][number]
            row = {"stack": tuples[node], "file": files[nodes["file"][node]], "line": nodes["line"][node] or None}
            row.update((name, thread[name]) for name in ("host", "rank", "process", "pid", "tid"))
            row.update(thread=thread["name"], samples=count, seconds=weight / 1e9 if is_time else None)
            rows.append(row)
        return rows

    def stacks(self) -> Any:
        """Returns :meth:`stack_rows` as a ``pandas.DataFrame``."""
        return _make_data_frame(self.stack_rows())

    def to_hatchet(self) -> Any:
        """Returns a ``hatchet.GraphFrame``: the call tree of all threads, with ``time`` and ``time (inc)`` in seconds,
        or in samples if they do not measure time. Needs ``read(..., stacks=True)``."""
        stacks = self._stacks()
        try:
            hatchet: Any = importlib.import_module("hatchet")
            frame: Any = importlib.import_module("hatchet.frame").Frame
            node_type: Any = importlib.import_module("hatchet.node").Node
            graph: Any = importlib.import_module("hatchet.graph").Graph
        except ImportError:
            raise Error(f"a GraphFrame needs Hatchet: {sys.executable} -m pip install llnl-hatchet") from None
        pandas: Any = importlib.import_module("pandas")
        nodes, samples = stacks["nodes"], stacks["samples"]
        unit, divisor = ("weight", 1e9) if self.data["is_time"] else ("samples", 1)
        exclusive = [0.0] * len(nodes["parent"])
        for node, amount in zip(samples["node"], samples[unit]):
            exclusive[node] += amount / divisor
        inclusive = list(exclusive)
        for node in range(len(inclusive) - 1, -1, -1):
            if nodes["parent"][node] >= 0:
                inclusive[nodes["parent"][node]] += inclusive[node]
        files = [*stacks["files"], None]
        names = [(row["name"], row["kind"]) for row in stacks["functions"]]
        columns = zip(nodes["file"], nodes["line"], nodes["function"])
        keys = [(files[file] or "", line, *names[function]) for file, line, function in columns]
        callees: List[List[int]] = [[] for _ in keys]
        roots: List[int] = []
        for node, parent in enumerate(nodes["parent"]):
            (callees[parent] if parent >= 0 else roots).append(node)
        # Callers first, callees by their frames: as Graph.enumerate_traverse, which is slower.
        made: Dict[int, Any] = {}
        depths = [0] * len(keys)
        rows: List[Any] = []
        waiting = sorted(roots, key=keys.__getitem__, reverse=True)
        while waiting:
            node = waiting.pop()
            file, line, name, kind = keys[node]
            parent = nodes["parent"][node]
            caller = made.get(parent)
            if caller is not None:
                depths[node] = depths[parent] + 1
            made[node] = node_type(frame(name=name, type=kind, file=file, line=line), caller, len(rows), depths[node])
            if caller is not None:
                caller.add_child(made[node])
            rows.append((made[node], name, kind, file or None, line, exclusive[node], inclusive[node]))
            waiting.extend(sorted(callees[node], key=keys.__getitem__, reverse=True))
        tree = graph([made[node] for node in roots])
        table = pandas.DataFrame(rows, columns=["node", "name", "type", "file", "line", "time", "time (inc)"])
        table = table.set_index("node")
        return hatchet.GraphFrame(tree, table, ["time"], ["time (inc)"])

    def _stacks(self) -> Dict[str, Any]:
        if "stacks" not in self.data:
            raise Error("the report has no stacks: use read(..., stacks=True)")
        return dict(self.data["stacks"])

    def summary(self) -> Dict[str, Any]:
        """Returns the time per activity (compiled and interpreted code, libraries, compiling, importing, ...) in
        samples, weight and percent."""
        return dict(self.data["summary"])


Path = Union[str, "os.PathLike[str]"]


def read(
    path: Union[Path, Iterable[Path]], *other_paths: Path, by_thread: bool = False, stacks: bool = False
) -> Report:
    """Reads recordings of ``jitlisten record`` or ``perf record``; several recordings are merged. A folder stands for
    the recordings in it. ``by_thread`` keeps the lines of each thread apart; ``stacks`` reads stacks, too. Raises
    :class:`Error` if a recording cannot be read."""
    paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    files = [os.fspath(file) for file in (*paths, *other_paths)]
    if not files:
        raise Error("no recording is named")
    for file in files:
        if not os.path.exists(file):
            raise Error(f"no such file: {file}")
    program = command()
    if program is None:
        raise Error("the command jitlisten is not installed beside this package")
    flags = ["--threads"] * bool(by_thread) + ["--stacks"] * bool(stacks)
    arguments = [program, "lines", "--json", "-", *flags, *(os.path.abspath(file) for file in files)]
    completed = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if completed.returncode != 0:
        raise Error(
            completed.stderr.decode(errors="replace").strip() or f"jitlisten lines ended with {completed.returncode}"
        )
    return Report(json.loads(completed.stdout))


def _make_data_frame(rows: List[Dict[str, Any]]) -> Any:
    try:
        pandas: Any = importlib.import_module("pandas")
    except ImportError:
        raise Error(f"a table needs pandas: {sys.executable} -m pip install pandas, or use .rows() and .data") from None
    return pandas.DataFrame(rows)
