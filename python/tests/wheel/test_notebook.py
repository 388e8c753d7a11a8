"""The magics in a real Jupyter kernel."""

import json
import os
import subprocess

import pytest
from conftest import PROGRAMS, python

KERNEL = """\
import math, numba
@numba.njit
def kernel(n):
    total = 0.0
    for i in range(n):
        total += math.sqrt(i) / (i + 1.0)
    return total
ready = kernel(10)
"""
ENOUGH = "kernel(100_000_000)"


@pytest.fixture
def cells(environment, tmp_path):
    """Runs cells after `%load_ext jitlisten`, returns the outputs of each."""
    if subprocess.run([str(python()), "-c", "import ipykernel, nbclient"], capture_output=True).returncode:
        if os.environ.get("CI"):
            pytest.fail("CI must have ipykernel and nbclient: ci/setup.sh wheel")
        pytest.skip("no ipykernel and nbclient: ci/setup.sh wheel")

    def cells(*texts):
        done = subprocess.run(
            [str(python()), str(PROGRAMS / "notebook.py")],
            input=json.dumps(["%load_ext jitlisten", *texts]),
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300,
        )
        assert done.returncode == 0, done.stderr
        first, *others = json.loads(done.stdout)
        assert first == [], "loading the extension shows nothing"
        return others

    return cells


def shown(outputs):
    """Text and HTML of the table below a cell."""
    [table] = [output["data"] for output in outputs if output["output_type"] == "display_data"]
    return table["text/plain"], table["text/html"]


def result(outputs):
    found = [output["data"]["text/plain"] for output in outputs if output["output_type"] == "execute_result"]
    return found[0] if found else None


def error(outputs):
    found = [(output["ename"], output["evalue"]) for output in outputs if output["output_type"] == "error"]
    return found[0] if found else None


def test_cells_have_their_names_and_hints(cells):
    work = "answer = kernel(100_000_000)\nparts = [i * i for i in range(2_000_000)]"
    defined, first, second, nothing = cells(
        KERNEL.replace("ready = kernel(10)\n", ""), "%%jitlisten -r 999\nkernel(10)", "%%jitlisten\n" + work,
        "%jitlisten 1 + 1",
    )
    assert "run the cell once more" in shown(first)[0] and "%  compiling" in shown(first)[0]
    for table in shown(second):
        # The line of the notebook's cell, which begins with the magic.
        for place in ("Cell In [2]:6", "Cell In [4]:3"):
            assert place in table, table
        assert "ipykernel_" not in table.replace("ipykernel_launcher", "") and "run the cell once more" not in table
    assert "parts = [i * i for" in shown(second)[0], "the source of what has no file"
    assert "too few samples (" in shown(nothing)[0]


def test_a_cell_and_a_statement_show_their_lines(cells):
    defined, cell, statement, value = cells(
        KERNEL,
        f"%%jitlisten --threads\nanswer = {ENOUGH}\nanswer > 0",
        f"found = %jitlisten -r 99 {ENOUGH}",
        "found == answer",
    )
    assert defined == []
    for outputs in (cell, statement):
        text, page = shown(outputs)
        # The cell's own text, which is in no file that a person has made.
        assert "|     6 |         total += math.sqrt(i) / (i + 1.0)" in text, text
        assert "__main__.kernel" in text and "\x1b" not in text
        assert page.startswith("<pre") and "total += math.sqrt(i) / (i + 1.0)" in page and "\x1b" not in page
    assert "| python (process" in shown(cell)[0], "--threads"
    assert "| python (process" not in shown(statement)[0]
    assert result(cell) == "True", "the value of the last expression"
    assert result(statement) is None and result(value) == "True", "a statement's value can be kept"


def test_a_slow_loop_has_its_advice(cells):
    _, slow = cells(
        "import numba, numpy\n@numba.njit\ndef total(a):\n    s = 0.0\n    for i in range(len(a)):\n        s += a[i]\n"
        "    return s",
        "%%jitlisten\nfor _ in range(10_000): total(numpy.ones(100_000))",
    )
    text, page = shown(slow)
    assert "⚑ loop 5-6: one value at a time" in text and "\x1b" not in text, text
    [line] = [line for line in page.splitlines() if "⚑ loop 5-6: " in line]
    assert '<span style="color:' in line, line


def test_the_page_the_file_and_names_of_the_cell(cells, tmp_path):
    _, page, after, kept = cells(
        KERNEL,
        f"%%jitlisten --html\nresult = {ENOUGH};",
        "result > 0",
        f"%jitlisten -o 'kept in a file.data' {ENOUGH};",
    )
    text, frame = shown(page)
    assert frame.startswith("<iframe srcdoc=") and "--html" in text
    assert "&lt;script" in frame and "<script" not in frame, "the page is inside of the frame only"
    assert result(after) == "True", "names of the cell stay"
    assert result(page) is None and result(kept) is None, "a semicolon keeps the value back"
    assert (tmp_path / "kept in a file.data").stat().st_size > 1000


def test_children_and_numbers_for_programs(cells, tmp_path):
    forked = f"import os\npid = os.fork()\n{ENOUGH}\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0);"
    _, both, alone, mistake = cells(
        KERNEL,
        f"%%jitlisten -s --processes --json 'both of them.json' -o kept.data\n{forked}",
        f"%%jitlisten --json alone.json -o kept.data\n{forked}",
        "%jitlisten -d soon 1",
    )
    text, _ = shown(both)
    assert text.count("| python (process ") == 2, text
    both, alone = (json.loads((tmp_path / name).read_text()) for name in ("both of them.json", "alone.json"))
    assert both["recordings"] == 2 and len(both["processes"]) == 2
    assert alone["recordings"] == 1 and len(alone["processes"]) == 1, "an earlier cell's child is not added"
    assert "--duration is a number" in error(mistake)[1]


def test_exceptions_are_those_of_the_cell_and_the_table_is_shown_all_the_same(cells):
    _, broken, mistake, both, empty, again, faults, help_ = cells(
        KERNEL,
        f"%%jitlisten\n{ENOUGH}\n1 / 0",
        "%jitlisten --nonsense 1",
        "%jitlisten --wall -e page-faults 1",
        "%jitlisten -r 99",
        f"%jitlisten {ENOUGH}",
        "%jitlisten -e page-faults [b'x' * (1 << 24) for _ in range(20)];",
        "%jitlisten --help",
    )
    assert error(broken)[0] == "ZeroDivisionError"
    assert "__main__.kernel" in shown(broken)[0]
    assert "--nonsense" in error(mistake)[1] and "--threads" in error(mistake)[1], "with the options there are"
    assert "leave --wall away" in error(both)[1] and "no statement" in error(empty)[1]
    assert "__main__.kernel" in shown(again)[0], "nothing is left of the one that failed"
    assert "samples of page-faults" in shown(faults)[0]
    assert "--wall" in help_[0]["text"]
