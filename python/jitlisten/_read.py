"""Reports on recordings: the output of ``jitlisten lines``, as data."""

import importlib
import json
import os
import subprocess
import sys
from typing import Any, Dict, Iterable, List, Union

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

    def summary(self) -> Dict[str, Any]:
        """Returns the time per activity (compiled and interpreted code, libraries, compiling, importing, ...) in
        samples, weight and percent."""
        return dict(self.data["summary"])


Path = Union[str, "os.PathLike[str]"]


def read(path: Union[Path, Iterable[Path]], *other_paths: Path, by_thread: bool = False) -> Report:
    """Reads recordings of ``jitlisten record`` or ``perf record``; several recordings are merged. A folder stands for
    the recordings in it. ``by_thread`` keeps the lines of each thread apart. Raises :class:`Error` if a recording
    cannot be read."""
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
    flags = ["--threads"] if by_thread else []
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
