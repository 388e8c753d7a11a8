#!/usr/bin/env python3
"""Generates the sections of docs/why-rules.md: a kernel of kernels.py, and its variant that follows the rule.

Usage:

    pages.py            writes the sections, with the figures of records/why-speedups.tsv
    pages.py --check    only checks that the page is up to date
    pages.py --run BIN  runs the code blocks of the page with BIN/jitlisten and BIN/python; the first function must get
                        the rule of its section, the second must not
    pages.py --driver SECONDS FILE...    the program that --run records: runs each function of the files for SECONDS
"""

import ast
import csv
import difflib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE, MARK = ROOT / "docs/why-rules.md", "<!-- The rest is written by benches/why/pages.py. -->\n"
SOURCE = (ROOT / "benches/why/kernels.py").read_text(encoding="utf-8")
BLOCK = re.compile(r"<!-- rule (?P<rule>[\w-]+) -->\n```diff\n(?P<text>.*?)^```$", re.M | re.S)
SECONDS = "0.5"
RULES_PER_RECORDING = 7
# Rules without a section: one is about several threads, Numba's linear algebra needs SciPy, and AVX-512 packs counters.
WITHOUT_SECTION = {"small-parallel", "row-product", "small-matrix", "branched-counts"}


def read_kernels():
    """Returns the source of each function, including variants of other functions, and the rule of each kernel."""
    texts, rules, lines = {}, {}, SOURCE.splitlines()
    for node in ast.parse(SOURCE).body:
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            first = node.decorator_list[0].lineno
            texts[node.name] = "\n".join(line.replace("  # hot", "") for line in lines[first - 1 : node.end_lineno])
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in ("RULES", "MORE"):
                rules.update(ast.literal_eval(node.value))
            elif (
                name.endswith("_changed") and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Call)
            ):
                original = node.value.args[0].value.id
                _, _, rest = texts[original].partition("\n")
                texts[name] = f"@{ast.unparse(node.value.func)}\n{rest}".replace("'", '"')
    # The changed kernel follows the first rule.
    return texts, {name: rule.split(", ")[0] for name, rule in rules.items()}


def format_section(rule, kernels, texts, measured):
    example = next((name for name in kernels if f"{name}_changed" in texts), kernels[0])
    changed = texts[f"{example}_changed"].replace("_changed", "")
    lines = "\n".join(line.rstrip() for line in difference(texts[example].splitlines(), changed.splitlines()))
    return f"## {rule}\n\n{measured[example]} times faster:\n\n<!-- rule {rule} -->\n```diff\n{lines}\n```\n"


def difference(old, new):
    """Yields the lines of both functions, each after a space, `-` or `+`."""
    for tag, old_first, old_end, new_first, new_end in difflib.SequenceMatcher(None, old, new, False).get_opcodes():
        if tag == "equal":
            yield from (f" {line}" for line in old[old_first:old_end])
        else:
            yield from (f"-{line}" for line in old[old_first:old_end])
            yield from (f"+{line}" for line in new[new_first:new_end])


def split_difference(text):
    """Returns the old function, and the new one."""
    lines = [line or " " for line in text.splitlines()]
    return ["\n".join(line[1:] for line in lines if line[0] != other) for other in "+-"]


def write(only_check):
    texts, rules = read_kernels()
    with open(ROOT / "records/why-speedups.tsv", encoding="utf-8", newline="") as file:
        measured = {row["kernel"]: row["times faster"] for row in csv.DictReader(file, delimiter="\t")}
    page = PAGE.read_text(encoding="utf-8")
    introduction, mark, _ = page.partition(MARK)
    order = [line.split("`")[1] for line in introduction.splitlines() if line.startswith("| `")]
    # Kernels run in one thread, in which no parallel region is too small.
    missing = (set(rules.values()) - {"-", "no loop"}) ^ set(order)
    missing -= WITHOUT_SECTION
    sections = [
        format_section(rule, [name for name in rules if rules[name] == rule], texts, measured)
        for rule in order
        if rule not in missing | WITHOUT_SECTION
    ]
    new_page = introduction + MARK + "\n" + "\n".join(sections)
    if not only_check:
        PAGE.write_text(new_page, encoding="utf-8")
    if missing or not mark or only_check and page != new_page:
        print(f"docs/why-rules.md: not what benches/why/pages.py writes; rules in one of both only: {sorted(missing)}")
        return 1
    return 0


def parse_functions(file):
    return [node for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)]


def run_functions(seconds, *files):
    """Runs the functions of the files. Each is compiled separately, because two in one file may have the same name."""
    import kernels

    everything = kernels.arguments()
    for file in map(pathlib.Path, files):
        rates = []
        for node in parse_functions(file):
            namespace = dict(vars(kernels))
            exec(compile(ast.Module([node], []), file, "exec"), namespace)
            values = [everything[parameter.arg] for parameter in node.args.args]
            kernel, values = namespace[node.name], [value() if callable(value) else value for value in values]
            kernel(*values)
            repetitions, started = 0, time.process_time()
            while time.process_time() < started + float(seconds):
                kernel(*values)
                repetitions += 1
            rates.append(repetitions / (time.process_time() - started))
        print(file.stem, *(f"{rate / rates[0]:.1f}" for rate in rates[1:]), sep="\t", flush=True)


def run(directory):
    """Records the code blocks of the page and checks their advice."""
    failures = 0
    directory = pathlib.Path(directory).resolve()
    with tempfile.TemporaryDirectory(prefix="jitlisten-rules-") as scratch:
        files = []
        for block in BLOCK.finditer(PAGE.read_text(encoding="utf-8")):
            files.append(pathlib.Path(scratch, block["rule"] + ".py"))
            files[-1].write_text("\n\n".join(split_difference(block["text"])), encoding="utf-8")
        data = f"{scratch}/data"
        lines = {}
        # In one recording of all rules, a loop that LLVM unrolled may have too small a share to be shown.
        for first in range(0, len(files), RULES_PER_RECORDING):
            some = files[first : first + RULES_PER_RECORDING]
            program = [directory / "python", __file__, "--driver", SECONDS, *some]
            # Use a low rate, because a busy machine skips samples of deep stacks that would take too long.
            subprocess.run(
                [directory / "jitlisten", "record", "-r", "499", "-o", data, "--", *program],
                check=True,
                env=dict(os.environ, NUMBA_NUM_THREADS="1"),
            )
            show = [directory / "jitlisten", "lines", "--json", "-", data]
            report = json.loads(subprocess.run(show, check=True, capture_output=True).stdout)
            lines.update((file["path"], file["lines"]) for file in report["files"])
        for file in files:
            loops = [(line["line"], loop) for line in lines.get(str(file), []) for loop in line["loops"]]
            for index, node in enumerate(parse_functions(file)):
                function_loops = [loop for line, loop in loops if node.lineno <= line <= node.end_lineno]
                rules = sorted({advice["rule"] for loop in function_loops for advice in loop["advice"]})
                if (file.stem in rules) != (index == 0):
                    failures += 1
                    print(f"docs/why-rules.md: {file.stem}: function {index + 1} has the rules {rules}")
    print(f"docs: why-rules.md: {len(files)} rules, {failures} failed", flush=True)
    return min(failures, 1)


def main(*words):
    if words[:1] == ("--driver",):
        return run_functions(*words[1:])
    return run(words[1]) if words[:1] == ("--run",) else write("--check" in words)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
