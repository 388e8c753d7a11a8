#!/usr/bin/env python3
"""No file imports in a circle: reads `crate::` and `super::` paths in the sources of each crate (tests left out) and prints the
circles it finds. A module may use what its parent re-exports; the parent naming its children is no import.

    ci/cycles.py [CRATE DIRECTORY...]
"""

import pathlib
import re
import sys


def modules(source):
    """Path of each module, as a tuple of names, to its file."""
    found = {}
    for file in source.rglob("*.rs"):
        parts = list(file.relative_to(source).with_suffix("").parts)
        if parts[-1] in ("mod", "lib", "main"):
            parts.pop()
        found[tuple(parts)] = file
    return found


def without_tests(text):
    text = re.sub(r"//.*", "", text)
    return re.split(r"#\[cfg\((?:all\()?test", text)[0]


def flatten(path):
    """`a::{b, c::{d}}` as its single paths."""
    head, brace, rest = path.partition("{")
    if not brace:
        return [path]
    depth, item, items = 0, "", []
    for char in rest[: rest.rfind("}")]:
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            items.append(item)
            item = ""
        else:
            item += char
    return [flat for item in items + [item] if item.strip() for flat in flatten(head.strip() + item.strip())]


def imports(module, text, known):
    uses = [flat for use in re.findall(r"\buse\s+((?:crate|super)::[^;]+);", text) for flat in flatten(re.sub(r"\s+", " ", use))]
    uses += re.findall(r"\b(?:crate|super)(?:::\w+)+", re.sub(r"\buse\s+[^;]+;", "", text))
    for use in uses:
        parts = [part.strip() for part in use.split(" as ")[0].split("::")]
        base = list(module) if parts[0] == "super" else []
        while parts and parts[0] in ("super", "crate"):
            if parts.pop(0) == "super":
                base = base[:-1]
        target = tuple(base)
        for part in parts:
            if target + (part,) not in known:
                break
            target += (part,)
        # The crate's root and a module's own ancestors re-export; a module and its children belong together.
        if target != module and module[: len(target)] != target and target[: len(module)] != module:
            yield target


def circles(graph):
    """Strongly connected components of more than one module (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def explore(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph[node]:
            if other not in index:
                explore(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = []
            while not component or component[-1] != node:
                component.append(stack.pop())
            if len(component) > 1:
                found.append(component)

    for node in graph:
        if node not in index:
            explore(node)
    return found


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    crates = [pathlib.Path(name) for name in sys.argv[1:]] or sorted(path.parent for path in root.glob("*/Cargo.toml") if (path.parent / "src").is_dir())
    bad = 0
    for crate in crates:
        known = modules(crate / "src")
        graph = {module: sorted(set(imports(module, without_tests(file.read_text()), known))) for module, file in known.items()}
        for circle in circles(graph):
            bad += 1
            print(f"{crate.name}: {' -> '.join('::'.join(module) for module in circle)}")
    print(f"cycles: {len(crates)} crates, {bad} circles")
    sys.exit(bad > 0)


main()
