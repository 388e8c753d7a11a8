"""`jitlisten compiles` lists the functions that Numba compiled in a recorded program."""

import json

from conftest import PROGRAMS, command, python
from test_answers import run_on_terminal

KERNEL = PROGRAMS / "kernel.py"


def test_what_a_program_compiled(run, tmp_path):
    program_once = ["--", python(), KERNEL, "once"]
    run(command(), "compiles", "-s", "--json", "out", *program_once)
    (burn,) = [row for row in json.loads((tmp_path / "out").read_text()) if row["depth"] == 0]
    assert burn["function"] == "kernel.burn" and burn["signature"] == "(int64)" and not burn["cached"]
    assert 0 < burn["llvm"] < burn["took"] <= 2 * burn["lasted"] and burn["size"] > 0
    assert burn["file"] == str(KERNEL) and burn["caller"].startswith(f"{KERNEL}:")
    text = run(command(), "compiles").stdout
    assert "kernel.burn" in text and "1 compilation, " in text and "cache=True not set" in text
    assert [row["function"] for row in json.loads(run(command(), "lines", "--json", "-").stdout)["compilations"]][
        0
    ] == "kernel.burn"
    # The same recording name is used again, for a program that compiles nothing.
    run(command(), "record", "--", python(), "-c", "sum(range(10_000_000))")
    assert "no compilations" in run(command(), "compiles").stdout


def test_a_row_is_a_line_of_the_terminal(environment, run, tmp_path):
    recording, page = tmp_path / "mixed.data", tmp_path / "page.html"
    run(command(), "record", "-o", recording, "--", python(), PROGRAMS / "mixed.py")
    compiled = json.loads(run(command(), "compiles", "--json", "-", recording).stdout)
    assert len(compiled) > 4 and all("0x" not in row["function"] for row in compiled)
    environment.pop("COLUMNS", None)
    for columns in (80, 120):
        text = run_on_terminal(environment, columns, command(), "compiles", "--all", recording)
        rows = text.split("\n\n")[0].splitlines()
        assert max(map(len, text.splitlines())) <= columns, text
        assert len(rows) == 1 + len(compiled), text
        assert ("signature" in rows[0]) == (columns >= 110)
    run(command(), "lines", "--html", page, recording)
    data = json.loads(page.read_text().split('type="application/json">')[1].split("</script>")[0])
    assert [row["function"] for row in data["compiling"]["rows"]] == [row["function"] for row in compiled]


def test_a_bundle_says_what_was_compiled(run, tmp_path):
    for _ in range(2):
        run(command(), "record", "--bundle", "-o", "folder", "--", python(), KERNEL, "once")
    (tmp_path / "folder").rename(tmp_path / "moved")
    assert "kernel.burn" in run(command(), "compiles", "moved").stdout
