"""The report that a user gets from the first recording of a program based on a library that uses Numba: compilations,
the user's own lines, and the library's compiled functions.

Run by ci/libraries.sh.
"""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

COMMAND = pathlib.Path(sys.executable).parent / "jitlisten"
RUN_TIMEOUT_S = 900
#: Program, its slowest compilation, and one of the library's compiled functions.
PROGRAMS = {
    "stumpy": (
        (
            "import numpy as np, stumpy\nT = np.cumsum(np.random.default_rng(0).standard_normal(9000))\nprofile ="
            " stumpy.stump(T, m=50)  # mine\n"
        ),
        "stumpy.stump._stump(",
        "stump._compute_diagonal",
    ),
    "sparse": (
        (
            "import sparse\na = sparse.random((2000, 2000), density=0.01, random_state=0)\nb = sparse.random((2000,"
            " 2000), density=0.01, random_state=1)\nfor k in range(20): (a @ b).sum()  # mine\n"
        ),
        "sparse.numba_backend._common._dot_",
        "_common.py:",
    ),
    "quantecon": (
        (
            "import numpy as np, quantecon as qe\nfor k in range(10):"
            " qe.gini_coefficient(np.random.default_rng(0).random(8000))  # mine\n"
        ),
        "quantecon._inequality.gini_coefficient(",
        "_inequality.py:",
    ),
    "datashader": (
        (
            "import numpy as np, pandas as pd, datashader as ds\nrng = np.random.default_rng(0)\nn = 1_500_000\ndf ="
            " pd.DataFrame({'x': rng.standard_normal(n), 'y': rng.standard_normal(n)})\ncanvas ="
            " ds.Canvas(plot_width=800, plot_height=600)\nfor k in range(20): canvas.points(df, 'x', 'y', ds.count()) "
            " # mine\n"
        ),
        "datashader.glyphs.points.extend_cpu(",
        "<_perform_extend_points>:",
    ),
}


def run(directory, *args, **environment):
    environment = {
        **os.environ,
        "NUMBA_CACHE_DIR": str(directory / "cache"),
        "OPENBLAS_NUM_THREADS": "1",
        **environment,
    }
    result = subprocess.run(
        [str(arg) for arg in args],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("library", PROGRAMS)
def test_a_first_run(tmp_path, library):
    program, slowest_compilation, hot_function = PROGRAMS[library]
    (tmp_path / "prog.py").write_text(program)
    text = run(tmp_path, COMMAND, "lines", "prog.py")
    screen, remainder = text.split("  activity (", 1)
    summary_text, remainder = remainder.split("| your functions")
    assert (
        re.search(r"^ +[\d.]+ m?s +[\d.]+ %  compiling ", summary_text, re.MULTILINE)
        and f"  {slowest_compilation}" in summary_text
        and " LLVM " in summary_text
    ), summary_text
    assert "next run: " in summary_text and summary_text.count("\n") < 20
    user_line = 1 + next(index for index, row in enumerate(program.splitlines()) if row.endswith("# mine"))
    rows = screen.split("your lines")[1]
    assert re.search(rf"prog\.py:(\d+[›»])?{user_line} ", rows), "the user's line is in the first screen"
    your_functions, remainder = remainder.split("| libraries, with their functions")
    libraries, sources = remainder.split("|  line | source", 1)
    assert "<module>" in your_functions and f"{library}." not in your_functions
    (library_row,) = [library_row for library_row in libraries.splitlines() if f"| {library} " in library_row]
    assert hot_function in screen + library_row, (hot_function, screen, library_row)
    assert "| Numba's compiler" in libraries and "| import system" in libraries
    assert libraries.splitlines()[-2].endswith("prog.py"), "the user's file first"
    report = json.loads(run(tmp_path, COMMAND, "lines", "--json", "-", "jitlisten.perf.data"))
    report_without_compiling = json.loads(
        run(tmp_path, COMMAND, "lines", "--json", "-", "--no-compile", "jitlisten.perf.data")
    )
    assert (
        report["summary"]["compiling"]["percent"] > 10
        and report_without_compiling["summary"]["compiling"]["samples"] == 0
    )
    assert any(
        row["kind"] == "compiled" and library in row["path"] or row["path"].startswith("<") for row in report["hottest"]
    )
