#!/usr/bin/env python3
"""No file imports in a circle: reads `crate::` and `super::` paths in the sources of each crate (tests left out) and
prints the circles it finds. What a file takes from a module that only passes it on (`pub use`, and a private `use` for
its children) is an import of the file it comes from. A parent that uses something of its child imports it; that a
parent names its children (`mod`, `pub use`) is no import, and neither is what a child takes from its parent.

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


def used(text):
    """Every path of every `use`, as (path, name here)."""
    for use in re.findall(r"\buse\s+([^;]+);", text):
        for flat in flatten(re.sub(r"\s+", " ", use)):
            path, _, alias = flat.partition(" as ")
            yield path.strip(), alias.strip() or path.split("::")[-1].strip()


def locate(module, path, known):
    """The module that a path written in `module` leads to, and the rest of the path: an item of the module, if any."""
    parts = [part.strip() for part in path.split("::")]
    target = () if parts[0] == "crate" else module
    while parts and parts[0] in ("super", "crate", "self"):
        if parts.pop(0) == "super":
            target = target[:-1]
    while parts and target + (parts[0],) in known:
        target += (parts.pop(0),)
    return target, parts


class Names:
    """What each module passes on, and where it comes from."""

    def __init__(self, texts):
        self.texts, self.passed, self.globs = texts, {}, {}
        for module, text in texts.items():
            self.passed[module], self.globs[module] = {}, []
            for path, name in used(text):
                target, rest = locate(module, path, texts)
                if target == module:
                    continue
                if name == "*":
                    self.globs[module].append(target)
                elif name not in ("_", "self"):
                    self.passed[module][name] = target, rest
        # `#[macro_export]` puts a macro into the crate's root.
        for module, text in texts.items():
            for name in re.findall(r"#\[macro_export\]\s*(?:#\[[^\]]*\]\s*)*macro_rules!\s*(\w+)", text):
                self.passed[()].setdefault(name, (module, [name]))

    def defines(self, module, name):
        return re.search(
            rf"\b(?:struct|enum|union|trait|fn|const|static|type|macro_rules!)\s+{re.escape(name)}\b",
            self.texts[module],
        )

    def origin(self, module, rest, seen=()):
        """The file that `rest`, taken from `module`, comes from."""
        if not rest or module in seen:
            return module
        if rest[0] in self.passed[module]:
            target, inner = self.passed[module][rest[0]]
            # A module that is passed on whole: the rest of the path goes on in it.
            target, inner = (
                locate(target, "::".join(inner + rest[1:]), self.texts) if not inner and rest[1:] else (target, inner)
            )
            return self.origin(target, inner, (*seen, module))
        for target in self.globs[module]:
            found = self.origin(target, rest, (*seen, module))
            if found != target or self.defines(target, rest[0]):
                return found
        return module


def imports(module, names):
    children = {
        known[len(module)] for known in names.texts if len(known) > len(module) and known[: len(module)] == module
    }
    passed_on = rf"\bpub(?:\([^)]*\))?\s+use\s+(?:self::)?(?:{'|'.join(children) or '-'})\b[^;]*;"
    text = re.sub(passed_on, "", names.texts[module])
    taken = [path for path, _ in used(text)]
    text = re.sub(r"\buse\s+[^;]+;", "", text)
    taken += re.findall(r"\b(?:crate|super)(?:::\w+)+", text)
    taken += [path for path in re.findall(r"(?<![\w:])\w+(?:::\w+)+", text) if path.split("::")[0] in children]
    for path in taken:
        if path.split("::")[0] not in {"crate", "super", "self", *children}:
            continue
        target, rest = locate(module, path, names.texts)
        target = names.origin(target, rest)
        # A child belongs to its parent.
        if target != module and module[: len(target)] != target:
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
    crates = [pathlib.Path(name) for name in sys.argv[1:]] or sorted(
        path.parent for path in root.glob("*/Cargo.toml") if (path.parent / "src").is_dir()
    )
    bad = 0
    for crate in crates:
        known = modules(crate / "src")
        names = Names({module: without_tests(file.read_text()) for module, file in known.items()})
        graph = {module: sorted(set(imports(module, names))) for module in known}
        for circle in circles(graph):
            bad += 1
            print(f"{crate.name}: {' -> '.join('::'.join(module) for module in circle)}")
    print(f"cycles: {len(crates)} crates, {bad} circles")
    sys.exit(bad > 0)


main()
