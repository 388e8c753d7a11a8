#!/usr/bin/env python3
"""Writes the sections of docs/why-rules.md from kernels.py and records/why-speedups.tsv; with --check it only
compares."""

import ast
import csv
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE, MARK = ROOT / "docs/why-rules.md", "<!-- The rest is written by benches/why/pages.py. -->\n"
SOURCE = (ROOT / "benches/why/kernels.py").read_text(encoding="utf-8")
REASON = "<!-- not run: benches/why/table.py runs the kernels, kernels.py compare measures them -->\n"


def parts():
    """The text of each function, and of what is made of another one; the rule of each kernel."""
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
                of = node.value.args[0].value.id
                _, _, rest = texts[of].partition("\n")
                texts[name] = f"@{ast.unparse(node.value.func)}\n{rest}".replace("'", '"')
    # The first rule is the one that its change follows.
    return texts, {name: rule.split(", ")[0] for name, rule in rules.items()}


def section(rule, kernels, texts, measured):
    out = [f"## {rule}\n"]
    example = next((name for name in kernels if f"{name}_changed" in texts), kernels[0])
    out.append(f"{REASON}```python\n{texts[example]}\n```\n")
    if f"{example}_changed" in texts:
        out.append(f"With the change:\n\n{REASON}```python\n{texts[f'{example}_changed']}\n```\n")
    found = [(name, measured[name]) for name in kernels if name in measured]
    if found:
        each = ", ".join(f"`{name}` {ratio}" for name, ratio in found)
        out.append(f"Times faster: {each}.\n")
    return "\n".join(out)


def main(*words):
    texts, rules = parts()
    with open(ROOT / "records/why-speedups.tsv", encoding="utf-8", newline="") as file:
        measured = {row["kernel"]: row["times faster"] for row in csv.DictReader(file, delimiter="\t")}
    page = PAGE.read_text(encoding="utf-8")
    head, mark, _ = page.partition(MARK)
    order = [line.split("`")[1] for line in head.splitlines() if line.startswith("| `")]
    missing = (set(rules.values()) - {"-", "no loop"}) ^ set(order)
    sections = [
        section(rule, [name for name in rules if rules[name] == rule], texts, measured)
        for rule in order
        if rule not in missing
    ]
    whole = head + MARK + "\n" + "\n".join(sections)
    if "--check" not in words:
        PAGE.write_text(whole, encoding="utf-8")
    if missing or not mark or "--check" in words and page != whole:
        print(f"docs/why-rules.md: not what benches/why/pages.py writes; rules in one of both only: {sorted(missing)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
