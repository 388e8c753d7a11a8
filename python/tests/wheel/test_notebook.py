"""The notebook magics in a real Jupyter kernel."""

import json
import os
import subprocess

import pytest
from conftest import PROGRAMS, command, need_package, python

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
LONG_CALL = "kernel(100_000_000)"


@pytest.fixture
def cells(environment, tmp_path):
    """Runs cells after `%load_ext jitlisten`; returns the outputs of each."""
    if subprocess.run([str(python()), "-c", "import ipykernel, nbclient"], capture_output=True).returncode:
        if os.environ.get("CI"):
            pytest.fail("CI must have ipykernel and nbclient: ci/setup.sh wheel")
        pytest.skip("no ipykernel and nbclient: ci/setup.sh wheel")

    def cells(*sources):
        completed = subprocess.run(
            [str(python()), str(PROGRAMS / "notebook.py")],
            input=json.dumps(["%load_ext jitlisten", *sources]),
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert completed.returncode == 0, completed.stderr
        loading_outputs, *cell_outputs = json.loads(completed.stdout)
        assert loading_outputs == [], "loading the extension shows nothing"
        return cell_outputs

    return cells


def displayed_table(outputs):
    """Text and HTML of the table below a cell."""
    [table] = [output["data"] for output in outputs if output["output_type"] == "display_data"]
    return table["text/plain"], table["text/html"]


def result_text(outputs):
    results = [output["data"]["text/plain"] for output in outputs if output["output_type"] == "execute_result"]
    return results[0] if results else None


def raised_error(outputs):
    errors = [(output["ename"], output["evalue"]) for output in outputs if output["output_type"] == "error"]
    return errors[0] if errors else None


def test_cells_have_their_names_and_hints(cells):
    source = "answer = kernel(100_000_000)\nparts = [i * i for i in range(2_000_000)]"
    definitions, first, second, too_short = cells(
        KERNEL.replace("ready = kernel(10)\n", ""),
        "%%jitlisten -r 999\nkernel(10)",
        "%%jitlisten\n" + source,
        "%jitlisten 1 + 1",
    )
    assert "run the cell once more" in displayed_table(first)[0] and "%  compiling" in displayed_table(first)[0]
    for table in displayed_table(second):
        # Line numbers count from the first line of the cell, which is the magic.
        for location in ("Cell In [2]:6", "Cell In [4]:3"):
            assert location in table, table
        assert "ipykernel_" not in table.replace("ipykernel_launcher", "") and "run the cell once more" not in table
    assert "parts = [i * i for" in displayed_table(second)[0], "the source of what has no file"
    assert "too few samples (" in displayed_table(too_short)[0]


def test_a_cell_and_a_statement_show_their_lines(cells):
    definitions, cell, statement, value = cells(
        KERNEL,
        f"%%jitlisten --threads\nanswer = {LONG_CALL}\nanswer > 0",
        f"found = %jitlisten -r 99 {LONG_CALL}",
        "found == answer",
    )
    assert definitions == []
    for outputs in (cell, statement):
        text, page = displayed_table(outputs)
        # The source comes from the cell itself, because no file contains it.
        assert "|     6 |         total += math.sqrt(i) / (i + 1.0)" in text, text
        assert "__main__.kernel" in text and "\x1b" not in text
        assert page.startswith("<pre") and "total += math.sqrt(i) / (i + 1.0)" in page and "\x1b" not in page
    assert "| python (process" in displayed_table(cell)[0], "--threads"
    assert "| python (process" not in displayed_table(statement)[0]
    assert result_text(cell) == "True", "the value of the last expression"
    assert result_text(statement) is None and result_text(value) == "True", "a statement's value can be kept"


def test_a_slow_loop_has_its_advice(cells):
    _, slow = cells(
        "import numba, numpy\n@numba.njit\ndef total(a):\n    s = 0.0\n    for i in range(len(a)):\n        s += a[i]\n"
        "    return s",
        "%%jitlisten\nfor _ in range(10_000): total(numpy.ones(100_000))",
    )
    text, page = displayed_table(slow)
    assert "⚑ loop 5-6: one value at a time" in text and "\x1b" not in text, text
    [line] = [line for line in page.splitlines() if "⚑ loop 5-6: " in line]
    assert '<span style="color:' in line, line


def test_the_page_the_file_and_names_of_the_cell(cells, tmp_path):
    _, page, next_cell, recorded_statement = cells(
        KERNEL,
        f"%%jitlisten --html\nresult = {LONG_CALL};",
        "result > 0",
        f"%jitlisten -o 'kept in a file.data' {LONG_CALL};",
    )
    text, iframe = displayed_table(page)
    assert iframe.startswith("<iframe srcdoc=") and "--html" in text
    assert "&lt;script" in iframe and "<script" not in iframe, "the page is inside of the frame only"
    assert result_text(next_cell) == "True", "names of the cell stay"
    assert result_text(page) is None and result_text(recorded_statement) is None, "a semicolon keeps the value back"
    assert (tmp_path / "kept in a file.data").stat().st_size > 1000


def test_children_and_numbers_for_programs(cells, tmp_path):
    fork_code = f"import os\npid = os.fork()\n{LONG_CALL}\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0);"
    _, with_children, without_children, bad_option = cells(
        KERNEL,
        f"%%jitlisten -s --processes --json 'both of them.json' -o kept.data\n{fork_code}",
        f"%%jitlisten --json alone.json -o kept.data\n{fork_code}",
        "%jitlisten -d soon 1",
    )
    text, _ = displayed_table(with_children)
    assert text.count("| python (process ") == 2, text
    with_children, without_children = (
        json.loads((tmp_path / name).read_text()) for name in ("both of them.json", "alone.json")
    )
    assert with_children["recordings"] == 2 and len(with_children["processes"]) == 2
    assert without_children["recordings"] == 1 and len(without_children["processes"]) == 1, (
        "an earlier cell's child is not added"
    )
    assert "--duration is a number" in raised_error(bad_option)[1]


def test_exceptions_are_those_of_the_cell_and_the_table_is_shown_all_the_same(cells):
    _, failing, unknown_option, conflicting, without_statement, after_failure, page_faults, help_ = cells(
        KERNEL,
        f"%%jitlisten\n{LONG_CALL}\n1 / 0",
        "%jitlisten --nonsense 1",
        "%jitlisten --wall -e page-faults 1",
        "%jitlisten -r 99",
        f"%jitlisten {LONG_CALL}",
        "%jitlisten -e page-faults [b'x' * (1 << 24) for _ in range(20)];",
        "%jitlisten --help",
    )
    assert raised_error(failing)[0] == "ZeroDivisionError"
    assert "__main__.kernel" in displayed_table(failing)[0]
    assert "--nonsense" in raised_error(unknown_option)[1] and "--threads" in raised_error(unknown_option)[1], (
        "with the options there are"
    )
    assert "leave --wall away" in raised_error(conflicting)[1] and "no statement" in raised_error(without_statement)[1]
    assert "__main__.kernel" in displayed_table(after_failure)[0], "nothing is left of the one that failed"
    assert "samples of page-faults" in displayed_table(page_faults)[0]
    assert "--wall" in help_[0]["text"]


def test_cells_of_a_recorded_ipython_belong_to_the_user(run, tmp_path):
    need_package(run, "IPython")
    cell = (
        "import numba, time\ndef squares(n):\n    return sum(i * i for i in range(n))\n"
        "end = time.process_time() + 1\nwhile time.process_time() < end: squares(50_000)\n"
    )
    (tmp_path / "cells.ipy").write_text(cell)
    run(command(), "record", "-r", "499", "-o", "r", "--", python(), "-m", "IPython", "cells.ipy")
    text = run(command(), "lines", "r").stdout
    assert "ipython-input-1:5" in text and "while time.process_time() < end: squares(50_000)" in text, text
    answer = json.loads(run(command(), "lines", "--json", "-", "r").stdout)["answer"]
    assert answer["elsewhere"]["percent"] < 50, answer["elsewhere"]
