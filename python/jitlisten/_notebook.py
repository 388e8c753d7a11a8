"""The magics ``%jitlisten`` and ``%%jitlisten`` of IPython and Jupyter: a recording of a cell, and its line table below
it.

The cell is recorded by the sampler in this process, and read by the command of this installation, in a process of its
own.
"""

import ast
import glob
import html
import linecache
import os
import re
import shlex
import subprocess
from typing import Any, Dict, List, Optional, Tuple

from . import Error, _files, enable, start_recording, stop_recording
from .__main__ import command

_USAGE = """\
%jitlisten [OPTIONS] statement
%%jitlisten [OPTIONS]      in the first line of a cell

-r HZ, --rate HZ   samples for each second of a thread's time (199)
--wall             wall-clock time: threads that wait, too
-e, --event EVENT  count this instead of time: cycles, cache-misses, page-faults
-d SECONDS         stop recording after so many seconds; the cell goes on
-s                 processes that the cell forks, too
--threads          shares of each thread
--processes        shares of each process
-a, --all          everything that has a sample, not only what is hot
--native           lines of C, C++ and Rust libraries with debug information, too
--html             the page of `jitlisten lines --html`, instead of the table
--json FILE        the numbers, for programs, besides the table
-o FILE            keep the recording: a perf.data
--no-lines         leave Numba's code without line tables
--no-python        no frames for functions of Python"""

#: Option: its name in what is parsed, and whether a value follows.
_OPTIONS: Dict[str, Tuple[str, bool]] = {
    "-r": ("rate", True),
    "--rate": ("rate", True),
    "-o": ("output", True),
    "--output": ("output", True),
    "--wall": ("wall", False),
    "-e": ("event", True),
    "--event": ("event", True),
    "-d": ("duration", True),
    "--duration": ("duration", True),
    "-s": ("subprocesses", False),
    "--subprocesses": ("subprocesses", False),
    "--threads": ("threads", False),
    "--processes": ("processes", False),
    "-a": ("all", False),
    "--all": ("all", False),
    "--native": ("native", False),
    "--html": ("html", False),
    "--json": ("json", True),
    "--no-lines": ("no_lines", False),
    "--no-python": ("no_python", False),
    "-h": ("help", False),
    "--help": ("help", False),
}

_HEIGHT = 640
#: Shares of fewer samples are chance.
_FEW = 20


class _Shown:
    """What is shown below the cell: text, and the same for a browser."""

    def __init__(self, text: str, page: str) -> None:
        self.text, self.page = text, page

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Dict[str, str]:
        return {"text/plain": self.text, "text/html": self.page}


def load(shell: Any) -> None:
    """``%load_ext jitlisten``: listens from now on, so that what is compiled next has lines."""
    enable()

    def magic(line: str, cell: Optional[str] = None) -> Any:
        return _magic(shell, line, cell)

    magic.__doc__ = _USAGE
    shell.register_magic_function(magic, "line_cell", "jitlisten")


def _magic(shell: Any, line: str, cell: Optional[str]) -> Any:
    options, statement = _parse(line)
    if "help" in options:
        print(_USAGE)
        return None
    if cell is not None and statement:
        raise Error("after %%jitlisten come options only; the cell begins in the next line")
    if "event" in options and "wall" in options:
        raise Error("-e counts an event instead of time: leave --wall away")
    text = statement if cell is None else cell
    if not text.strip():
        raise Error("there is no statement: %jitlisten [OPTIONS] statement")
    with _files.Scratch(prefix="jitlisten-notebook-") as directory:
        path = os.path.abspath(options.get("output") or os.path.join(directory, "jitlisten.perf.data"))
        earlier = _recordings(path)
        start_recording(
            path,
            hz=_number(options, "rate", 199, 10_000),
            wall="wall" in options,
            children="subprocesses" in options,
            seconds=_number(options, "duration", 0, 1_000_000_000),
            event=options.get("event"),
            python="no_python" not in options,
            lines="no_lines" not in options,
        )
        try:
            # In a cell, the magic is the first line.
            return _execute(shell, text, 0 if cell is None else 1)
        finally:
            # After an exception and an interrupt, too: up to there is what a person wants to see.
            stop_recording()
            files = sorted(file for file, identity in _recordings(path).items() if earlier.get(file) != identity)
            if files:
                cells = _cells(shell)
                shown = _report(files, options, directory, _texts_of(cells, directory))
                _display(_named(shown, cells))
            else:
                print(f"no samples; {path} is an earlier recording")


def _parse(line: str) -> Tuple[Dict[str, str], str]:
    """Options, and what is behind them."""
    options: Dict[str, str] = {}
    rest = line.strip()
    while rest.startswith("-"):
        word, _, rest = rest.partition(" ")
        rest = rest.lstrip()
        if word == "--":
            break
        word, equals, value = word.partition("=")
        if word not in _OPTIONS:
            raise Error(f"no option is called {word!r}\n\n{_USAGE}")
        name, has_value = _OPTIONS[word]
        if has_value and not equals:
            value, rest = _first_word(rest)
            if not value:
                raise Error(f"{word} needs a value")
        elif equals and not has_value:
            raise Error(f"{word} takes no value")
        options[name] = value
    return options, rest


def _first_word(text: str) -> Tuple[str, str]:
    """A word, which may be quoted, and what is behind it."""
    match = re.match(r"""("[^"]*"|'[^']*'|\S)+""", text)
    if match is None:
        return "", text
    return "".join(shlex.split(match.group())), text[match.end() :].lstrip()


def _number(options: Dict[str, str], name: str, default: int, most: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise Error(f"--{name} is a number from 1 to {most}, not {text!r}")
    return int(text)


def _execute(shell: Any, text: str, above: int) -> Any:
    """Runs the text as a cell of its own, and returns what its last expression is."""
    text = "\n" * above + shell.transform_cell(text)
    # The cell that runs is the last that was compiled.
    counts = getattr(shell.compile, "_filename_map", {}).values()
    name = shell.compile.cache(text, max(counts, default=0))
    tree = shell.compile.ast_parse(text, filename=name)
    last = tree.body[-1] if tree.body else None
    space = shell.user_ns
    if not isinstance(last, ast.Expr):
        exec(shell.compile(tree, name, "exec"), space)
        return None
    tree.body.pop()
    exec(shell.compile(tree, name, "exec"), space)
    value = eval(shell.compile(ast.Expression(last.value), name, "eval"), space)
    # As at the end of a cell: a semicolon keeps the value from being shown.
    return None if text.rstrip().endswith(";") else value


def _recordings(path: str) -> Dict[str, Tuple[int, int]]:
    """This recording and those that children of a fork wrote beside it (perf-format/src/recording.rs), with what
    changes when they are written."""
    children = [file for file in glob.glob(glob.escape(path) + ".[0-9]*") if file[len(path) + 1 :].isdecimal()]
    found = {file: os.stat(file) for file in [path, *children] if os.path.exists(file)}
    return {file: (about.st_ino, about.st_mtime_ns) for file, about in found.items()}


def _report(files: List[str], options: Dict[str, str], directory: str, texts: str) -> _Shown:
    flags = ["--root", texts]
    flags += ["--" + name for name in ("threads", "processes", "all", "native") if name in options]
    if "json" in options:
        _command(["lines", *flags, "--json", os.path.abspath(options["json"]), *files])
    if "html" in options:
        page = os.path.join(directory, "page.html")
        _command(["lines", *flags, "--html", page, *files])
        with open(page, encoding="utf-8") as file:
            content = html.escape(file.read(), quote=True)
        frame = f'<iframe srcdoc="{content}" style="width:100%;height:{_HEIGHT}px;border:1px solid #888"></iframe>'
        return _Shown("a page for a browser: leave --html away for the table", frame)
    text = _command(["lines", *flags, "--color", "always", *files])
    text = _hints(_SEQUENCE.sub("", text)) + text
    return _Shown(_SEQUENCE.sub("", text), _to_html(text))


def _cells(shell: Any) -> Dict[str, str]:
    """The file name of each cell: ``Cell In [3]``, as in IPython's tracebacks."""
    names: Dict[str, Any] = getattr(shell.compile, "_filename_map", {})
    cells = {}
    for file, count in names.items():
        if not count:
            continue
        is_magic = linecache.getline(file, 1).startswith("get_ipython().run_cell_magic(")
        cells[str(file)] = f"Cell In [{count}]" + (", the magic" if is_magic else "")
    return cells


def _texts_of(cells: Dict[str, str], directory: str) -> str:
    """Writes the texts of cells, which have no files, to where the report looks for files first."""
    root = os.path.join(directory, "cells")
    for file in cells:
        text = "".join(linecache.getlines(file)).encode("utf-8", "surrogateescape")
        # It is as old as the cell.
        _files.write_below(directory, os.path.join("cells", file.lstrip("/")), text, modified=0)
    return root


def _named(shown: "_Shown", cells: Dict[str, str]) -> "_Shown":
    """With the names of cells in the place of their files; columns stay where they are."""

    def named(text: str) -> str:
        for file, cell in cells.items():
            stem = os.path.basename(file).rpartition(".")[0]
            # What Numba compiled has a copy of the text, with a hash in its name (`_lines`).
            found = re.compile(r"(?:/[\w.@+~/-]*/)?\b" + re.escape(stem) + r"(?:-[0-9a-f]{12})?\.py(:\d+)?( *)")
            text = found.sub(lambda place: _in_place(place, cell), text)
            text = re.sub(r"\b" + re.escape(stem) + r"\.(?=\w)", "", text)
        return text

    return _Shown(named(shown.text), named(shown.page))


def _in_place(place: "re.Match[str]", cell: str) -> str:
    shown = cell + (place[1] or "")
    return shown.ljust(len(place[0])) if place[2] else shown


def _hints(text: str) -> str:
    """What a table of so few samples, or of so much compiling, says."""
    samples = re.search(r"([\d,]+) samples? of", text)
    count = int(samples[1].replace(",", "")) if samples else 0
    if count < _FEW:
        return f"too few samples ({count}) to tell much: give the cell more to do, or use -r 999\n"
    compiling = re.search(r"([\d.]+) %  compiling", text)
    if compiling and float(compiling[1]) > 50:
        return "most of the time was compilation: run the cell once more to see the compiled code\n"
    return ""


def _command(arguments: List[str]) -> str:
    program = command()
    if program is None:
        raise Error("the command jitlisten is not installed beside this package: pip install jitlisten")
    environment = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "JITLISTEN")}
    done = subprocess.run([program, *arguments], env=environment, capture_output=True)
    if done.returncode:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it gave no reason"]
        raise Error(f"the recording cannot be shown: {words[-1]}")
    return done.stdout.decode("utf-8", "replace")


_SEQUENCE = re.compile("\x1b\\[([0-9;]*)m")
#: The colours of the table (report/src/text.rs), readable on white and on black.
_STYLES = {
    "1": "font-weight:bold",
    "2": "opacity:.65",
    "32": "color:#2e8b57",
    "33": "color:#b8860b",
    "35": "color:#a349a4",
    "36": "color:#1a8a8a",
    "1;31": "color:#d0392b;font-weight:bold",
}


def _to_html(text: str) -> str:
    parts, opened = [], False
    for at, part in enumerate(_SEQUENCE.split(text)):
        if at % 2 == 0:
            parts.append(html.escape(part))
            continue
        if opened:
            parts.append("</span>")
        style = _STYLES.get(part)
        opened = style is not None
        if style is not None:
            parts.append(f'<span style="{style}">')
    if opened:
        parts.append("</span>")
    return '<pre style="line-height:1.25;overflow-x:auto;white-space:pre">' + "".join(parts) + "</pre>"


def _display(shown: _Shown) -> None:
    from importlib import import_module

    import_module("IPython.display").display(shown)
