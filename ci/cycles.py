#!/usr/bin/env python3
"""Finds import cycles between the source files of each crate, and pairs of its folders that import each other, by
reading `crate::` and `super::` paths. Ignores tests.

An item that a module re-exports (`pub use`, or a private `use` for its children) counts as an import of the file that
defines the item. A parent that uses an item of its child imports the child. A parent that merely names its children
(`mod`, `pub use`) does not import them, and a child that uses an item of its parent does not import the parent.

    ci/cycles.py [CRATE DIRECTORY...]
"""

import pathlib
import re
import sys

# The sampler's folders share the state of one recording.
CRATES_WITH_MUTUAL_FOLDERS = ("sampler",)


def find_modules(source):
    """Maps the path of each module, a tuple of names, to its file."""
    files = {}
    for file in source.rglob("*.rs"):
        parts = list(file.relative_to(source).with_suffix("").parts)
        if parts[-1] in ("mod", "lib", "main"):
            parts.pop()
        files[tuple(parts)] = file
    return files


def without_tests(text):
    """Removes comments, and each item that only tests have: up to its semicolon or its closing brace."""
    text = re.sub(r"//.*", "", text)
    while test := re.search(r"#\[cfg\((?:all\()?test\b[^\n]*\]", text):
        end, depth = test.end(), 0
        for end in range(test.end(), len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0 and text[end] in ";}":
                break
        text = text[: test.start()] + text[end + 1 :]
    return text


def flatten(path):
    """Expands `a::{b, c::{d}}` into single paths."""
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


def use_paths(text):
    """Yields each path of each `use`, as (path, local name)."""
    for use in re.findall(r"\buse\s+([^;]+);", text):
        for flat in flatten(re.sub(r"\s+", " ", use)):
            path, _, alias = flat.partition(" as ")
            yield path.strip(), alias.strip() or path.split("::")[-1].strip()


def resolve_path(module, path, modules):
    """Returns the module that a path in `module` leads to, and the rest of the path: an item of that module, if any."""
    parts = [part.strip() for part in path.split("::")]
    target = () if parts[0] == "crate" else module
    while parts and parts[0] in ("super", "crate", "self"):
        if parts.pop(0) == "super":
            target = target[:-1]
    while parts and target + (parts[0],) in modules:
        target += (parts.pop(0),)
    return target, parts


class Reexports:
    """Re-exports of each module, and the definitions that they refer to."""

    def __init__(self, texts):
        self.texts, self.reexports, self.globs = texts, {}, {}
        for module, text in texts.items():
            self.reexports[module], self.globs[module] = {}, []
            for path, name in use_paths(text):
                target, rest = resolve_path(module, path, texts)
                if target == module:
                    continue
                if name == "*":
                    self.globs[module].append(target)
                elif name not in ("_", "self"):
                    self.reexports[module][name] = target, rest
        # `#[macro_export]` defines a macro at the crate root.
        for module, text in texts.items():
            for name in re.findall(r"#\[macro_export\]\s*(?:#\[[^\]]*\]\s*)*macro_rules!\s*(\w+)", text):
                self.reexports[()].setdefault(name, (module, [name]))

    def defines(self, module, name):
        return re.search(
            rf"\b(?:struct|enum|union|trait|fn|const|static|type|macro_rules!)\s+{re.escape(name)}\b",
            self.texts[module],
        )

    def find_origin(self, module, rest, seen=()):
        """Returns the module that defines `rest`, a path relative to `module`."""
        if not rest or module in seen:
            return module
        if rest[0] in self.reexports[module]:
            target, inner_path = self.reexports[module][rest[0]]
            # If a module itself is re-exported, the rest of the path is resolved in that module.
            target, inner_path = (
                resolve_path(target, "::".join(inner_path + rest[1:]), self.texts)
                if not inner_path and rest[1:]
                else (target, inner_path)
            )
            return self.find_origin(target, inner_path, (*seen, module))
        for target in self.globs[module]:
            definition = self.find_origin(target, rest, (*seen, module))
            if definition != target or self.defines(target, rest[0]):
                return definition
        return module


def find_imports(module, names):
    children = {
        other[len(module)] for other in names.texts if len(other) > len(module) and other[: len(module)] == module
    }
    reexport_pattern = rf"\bpub(?:\([^)]*\))?\s+use\s+(?:self::)?(?:{'|'.join(children) or '-'})\b[^;]*;"
    text = re.sub(reexport_pattern, "", names.texts[module])
    imported_paths = [path for path, _ in use_paths(text)]
    text = re.sub(r"\buse\s+[^;]+;", "", text)
    imported_paths += re.findall(r"\b(?:crate|super)(?:::\w+)+", text)
    imported_paths += [path for path in re.findall(r"(?<![\w:])\w+(?:::\w+)+", text) if path.split("::")[0] in children]
    for path in imported_paths:
        if path.split("::")[0] not in {"crate", "super", "self", *children}:
            continue
        target, rest = resolve_path(module, path, names.texts)
        target = names.find_origin(target, rest)
        # A module may import from its ancestors.
        if target != module and module[: len(target)] != target:
            yield target


def find_cycles(graph):
    """Finds strongly connected components of more than one module (Tarjan's algorithm)."""
    index, low, stack, cycles = {}, {}, [], []

    def explore(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for neighbour in graph[node]:
            if neighbour not in index:
                explore(neighbour)
                low[node] = min(low[node], low[neighbour])
            elif neighbour in stack:
                low[node] = min(low[node], index[neighbour])
        if low[node] == index[node]:
            component = []
            while not component or component[-1] != node:
                component.append(stack.pop())
            if len(component) > 1:
                cycles.append(component)

    for node in graph:
        if node not in index:
            explore(node)
    return cycles


def find_mutual_folders(graph):
    """Returns the pairs of top-level modules whose files import each other."""
    imports = {(module[0], target[0]) for module, targets in graph.items() for target in targets if module and target}
    return sorted((one, other) for one, other in imports if one < other and (other, one) in imports)


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    crates = [pathlib.Path(name) for name in sys.argv[1:]] or sorted(
        path.parent for path in root.glob("*/Cargo.toml") if (path.parent / "src").is_dir()
    )
    cycle_count = pair_count = 0
    for crate in crates:
        module_files = find_modules(crate / "src")
        names = Reexports({module: without_tests(file.read_text()) for module, file in module_files.items()})
        graph = {module: sorted(set(find_imports(module, names))) for module in module_files}
        for cycle in find_cycles(graph):
            cycle_count += 1
            print(f"{crate.name}: {' -> '.join('::'.join(module) for module in cycle)}")
        for one, other in find_mutual_folders(graph) if crate.name not in CRATES_WITH_MUTUAL_FOLDERS else ():
            pair_count += 1
            print(f"{crate.name}: {one} and {other} import each other")
    print(f"cycles: {len(crates)} crates, {cycle_count} circles, {pair_count} mutual pairs of folders")
    sys.exit(cycle_count + pair_count > 0)


main()
