"""A recording, read: what ``jitlisten lines`` shows, as data."""

import importlib
import json
import os
import subprocess
import sys
from typing import Any, Dict, List, Union

from . import Error
from .__main__ import command


class Report:
    """What a recording says; see :func:`jitlisten.read`."""

    def __init__(self, data: Dict[str, Any]) -> None:
        #: The whole report as ``jitlisten lines --json -`` writes it.
        self.data = data

    def rows(self) -> List[Dict[str, Any]]:
        """One dict for each line with samples, as in :meth:`lines`."""
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

    def lines(self) -> Any:
        """A ``pandas.DataFrame`` with one row for each line with samples.

        Columns: ``file``, ``line``, ``kind`` (``"compiled"``, ``"python"``, or nothing for a library's Python),
        ``self`` and ``total`` in samples and percent, ``in_c`` (samples in C functions that the line called),
        ``source``, ``seconds`` of self (nothing where samples are not of time).
        """
        return _frame(self.rows())

    def functions(self) -> Any:
        """A ``pandas.DataFrame`` with one row for each function with samples."""
        names = ("name", "kind", "self", "total", "self_percent", "total_percent")
        return _frame([{name: row[name] for name in names} for row in self.data["functions"]])

    def summary(self) -> Dict[str, Any]:
        """What was done: compiled and interpreted code, libraries, compiling, importing, ... in samples, weight and
        percent."""
        return dict(self.data["summary"])


def read(path: Union[str, "os.PathLike[str]"], *more: Union[str, "os.PathLike[str]"]) -> Report:
    """Reads recordings of ``jitlisten record`` or ``perf record``; several are added up. Raises :class:`Error` for what
    cannot be read."""
    files = [os.fspath(file) for file in (path, *more)]
    for file in files:
        if not os.path.exists(file):
            raise Error(f"no such file: {file}")
    program = command()
    if program is None:
        raise Error("the command jitlisten is not installed beside this package")
    words = [program, "lines", "--json", "-", *(os.path.abspath(file) for file in files)]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise Error(done.stderr.decode(errors="replace").strip() or f"jitlisten lines ended with {done.returncode}")
    return Report(json.loads(done.stdout))


def _frame(rows: List[Dict[str, Any]]) -> Any:
    try:
        pandas: Any = importlib.import_module("pandas")
    except ImportError:
        raise Error(f"a table needs pandas: {sys.executable} -m pip install pandas, or use .rows() and .data") from None
    return pandas.DataFrame(rows)
