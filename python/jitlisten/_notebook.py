"""IPython and Jupyter magics ``%jitlisten`` and ``%%jitlisten``: they record a cell and show its line table below it.

The sampler in this process records the cell. The installed command reads the recording, in a separate process.
"""

import ast
import functools
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

#: Command-line options: key in the parsed options, and whether a value follows.
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

_HEIGHT_PX = 640
#: Number of samples below which shares are noise.
_MIN_SAMPLES = 20


class _Output:
    """Output below the cell, as text and as HTML."""

    def __init__(self, text: str, page: str) -> None:
        self.text, self.page = text, page

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Dict[str, str]:
        return {"text/plain": self.text, "text/html": self.page}


def load(shell: Any) -> None:
    """Loads the extension. Enables jitlisten, so that code compiled from now on has lines."""
    enable()

    def magic(line: str, cell: Optional[str] = None) -> Any:
        return _run_magic(shell, line, cell)

    magic.__doc__ = _USAGE
    shell.register_magic_function(magic, "line_cell", "jitlisten")


def _run_magic(shell: Any, line: str, cell: Optional[str]) -> Any:
    options, statement = _parse_options(line)
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
        earlier_recordings = _recordings(path)
        start_recording(
            path.replace("%", "%%"),
            hz=_parse_number(options, "rate", 0, 10_000),
            wall="wall" in options,
            children="subprocesses" in options,
            seconds=_parse_number(options, "duration", 0, 1_000_000_000),
            event=options.get("event"),
            python="no_python" not in options,
            lines="no_lines" not in options,
        )
        try:
            # In a cell, the magic takes the first line.
            return _execute(shell, text, 0 if cell is None else 1)
        finally:
            # Also report after an exception or interrupt, because the user wants to see the samples up to that point.
            stop_recording()
            files = sorted(
                file for file, identity in _recordings(path).items() if earlier_recordings.get(file) != identity
            )
            if files:
                cells = _cell_names(shell)
                output = _make_report(files, options, directory, _write_cell_texts(cells, directory))
                _display(_with_cell_names(output, cells))
            else:
                print(f"no samples; {path} is an earlier recording")


def _parse_options(line: str) -> Tuple[Dict[str, str], str]:
    """Splits a line into its options and the statement after them."""
    options: Dict[str, str] = {}
    remainder = line.strip()
    while remainder.startswith("-"):
        word, _, remainder = remainder.partition(" ")
        remainder = remainder.lstrip()
        if word == "--":
            break
        word, equals, value = word.partition("=")
        if word not in _OPTIONS:
            raise Error(f"no option is called {word!r}\n\n{_USAGE}")
        name, has_value = _OPTIONS[word]
        if has_value and not equals:
            value, remainder = _first_word(remainder)
            if not value:
                raise Error(f"{word} needs a value")
        elif equals and not has_value:
            raise Error(f"{word} takes no value")
        options[name] = value
    return options, remainder


def _first_word(text: str) -> Tuple[str, str]:
    """Splits off the first word, which may be quoted."""
    match = re.match(r"""("[^"]*"|'[^']*'|\S)+""", text)
    if match is None:
        return "", text
    return "".join(shlex.split(match.group())), text[match.end() :].lstrip()


def _parse_number(options: Dict[str, str], name: str, default: int, max_value: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not text.isdecimal() or not 1 <= int(text) <= max_value:
        raise Error(f"--{name} is a number from 1 to {max_value}, not {text!r}")
    return int(text)


def _execute(shell: Any, text: str, lines_above: int) -> Any:
    """Runs `text` as a separate cell and returns the value of its last expression."""
    text = "\n" * lines_above + shell.transform_cell(text)
    # The running cell was compiled last.
    counts = getattr(shell.compile, "_filename_map", {}).values()
    name = shell.compile.cache(text, max(counts, default=0))
    tree = shell.compile.ast_parse(text, filename=name)
    last_statement = tree.body[-1] if tree.body else None
    namespace = shell.user_ns
    if not isinstance(last_statement, ast.Expr):
        exec(shell.compile(tree, name, "exec"), namespace)
        return None
    tree.body.pop()
    exec(shell.compile(tree, name, "exec"), namespace)
    value = eval(shell.compile(ast.Expression(last_statement.value), name, "eval"), namespace)
    # A semicolon at the end of a cell suppresses its value.
    return None if text.rstrip().endswith(";") else value


def _recordings(path: str) -> Dict[str, Tuple[int, int]]:
    """Returns this recording and those that children of a fork wrote next to it (wire/src/recording.rs), each
    with an identity that changes when it is written."""
    children = [file for file in glob.glob(glob.escape(path) + ".[0-9]*") if file[len(path) + 1 :].isdecimal()]
    stats = {file: os.stat(file) for file in [path, *children] if os.path.exists(file)}
    return {file: (stat.st_ino, stat.st_mtime_ns) for file, stat in stats.items()}


def _make_report(files: List[str], options: Dict[str, str], directory: str, texts: str) -> _Output:
    flags = ["--root", texts]
    flags += ["--" + name for name in ("threads", "processes", "all", "native") if name in options]
    if "json" in options:
        _run_command(["lines", *flags, "--json", os.path.abspath(options["json"]), *files])
    if "html" in options:
        page = os.path.join(directory, "page.html")
        _run_command(["lines", *flags, "--html", page, *files])
        with open(page, encoding="utf-8") as file:
            content = html.escape(file.read(), quote=True)
        frame = f'<iframe srcdoc="{content}" style="width:100%;height:{_HEIGHT_PX}px;border:1px solid #888"></iframe>'
        return _Output("a page for a browser: leave --html away for the table", frame)
    text = _run_command(["lines", *flags, "--color", "always", *files])
    text = _hints(_COLOR_SEQUENCE.sub("", text)) + text
    return _Output(_COLOR_SEQUENCE.sub("", text), _to_html(text))


def _cell_names(shell: Any) -> Dict[str, str]:
    """Returns the display name of each cell's file: ``Cell In [3]``, as in IPython's tracebacks."""
    names: Dict[str, Any] = getattr(shell.compile, "_filename_map", {})
    cells = {}
    for file, count in names.items():
        if not count:
            continue
        is_magic = linecache.getline(file, 1).startswith("get_ipython().run_cell_magic(")
        cells[str(file)] = f"Cell In [{count}]" + (", the magic" if is_magic else "")
    return cells


def _write_cell_texts(cells: Dict[str, str], directory: str) -> str:
    """Writes cell sources, which have no files of their own, into the directory that the report searches first."""
    root = os.path.join(directory, "cells")
    for file in cells:
        text = "".join(linecache.getlines(file)).encode("utf-8", "surrogateescape")
        # The file must not look newer than the recording.
        _files.write_below(directory, os.path.join("cells", file.lstrip("/")), text, modified=0)
    return root


def _with_cell_names(output: "_Output", cells: Dict[str, str]) -> "_Output":
    """Replaces the file names of cells with display names; columns keep their positions."""

    def replace_names(text: str) -> str:
        for file, cell in cells.items():
            stem = os.path.basename(file).rpartition(".")[0]
            # Code compiled by Numba refers to a copy of the cell's source, with a hash in its file name (`_lines`).
            pattern = re.compile(r"(?:/[\w.@+~/-]*/)?\b" + re.escape(stem) + r"(?:-[0-9a-f]{12})?\.py(:\d+)?( *)")
            text = pattern.sub(functools.partial(_replace_match, cell), text)
            text = re.sub(r"\b" + re.escape(stem) + r"\.(?=\w)", "", text)
        return text

    return _Output(replace_names(output.text), replace_names(output.page))


def _replace_match(cell: str, match: "re.Match[str]") -> str:
    replacement = cell + (match[1] or "")
    return replacement.ljust(len(match[0])) if match[2] else replacement


def _hints(text: str) -> str:
    """Returns a hint if the table has few samples, or mostly time that only a first run spends."""
    samples = re.search(r"([\d,]+) samples? of", text)
    count = int(samples[1].replace(",", "")) if samples else 0
    if count < _MIN_SAMPLES:
        return f"too few samples ({count}) to tell much: give the cell more to do, or use -r 999\n"
    first_run = re.findall(r"([\d.]+) %  (?:compiling|Numba's first use)\b", text)
    if sum(map(float, first_run)) > 50:
        return "most of the time was compilation: run the cell once more to see the compiled code\n"
    return ""


def _run_command(arguments: List[str]) -> str:
    program = command()
    if program is None:
        raise Error("the command jitlisten is not installed beside this package: pip install jitlisten")
    environment = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "JITLISTEN")}
    completed = subprocess.run([program, *arguments], env=environment, capture_output=True)
    if completed.returncode:
        error_lines = completed.stderr.decode("utf-8", "replace").strip().splitlines() or ["it gave no reason"]
        raise Error(f"the recording cannot be shown: {error_lines[-1]}")
    return completed.stdout.decode("utf-8", "replace")


_COLOR_SEQUENCE = re.compile("\x1b\\[([0-9;]*)m")
#: Styles for the colours of the table (report/src/render/text/mod.rs), readable on white and on black.
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
    parts, is_open = [], False
    for index, part in enumerate(_COLOR_SEQUENCE.split(text)):
        if index % 2 == 0:
            parts.append(html.escape(part))
            continue
        if is_open:
            parts.append("</span>")
        style = _STYLES.get(part)
        is_open = style is not None
        if style is not None:
            parts.append(f'<span style="{style}">')
    if is_open:
        parts.append("</span>")
    return '<pre style="line-height:1.25;overflow-x:auto;white-space:pre">' + "".join(parts) + "</pre>"


def _display(output: _Output) -> None:
    from importlib import import_module

    import_module("IPython.display").display(output)
