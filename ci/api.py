#!/usr/bin/env python3
"""Compares the public items of the published crates with CRATE/public-api.txt, one item per line. Every change is
thus visible in review; a removal needs a new version.

    ci/api.py           compares
    ci/api.py --write   rewrites the files

The items come from rustdoc's JSON, which omits items hidden in the documentation. Its format is unstable and needs
`RUSTC_BOOTSTRAP=1`. If the toolchain writes another version of it, the comparison fails in CI and is skipped
elsewhere.
`cargo public-api` does the same, but must be built first and needs a nightly toolchain in addition to the MSRV's.
"""

import difflib
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CRATES = {
    "jitlisten": "jitlisten",
    "jitlisten-files": "files",
    "jitlisten-names": "names",
    "jitlisten-unwinder": "unwinder",
    "unwind-register": "unwind-register",
}
RUSTDOC_FORMATS = (57,)


def rustdoc_json(package):
    environment = dict(os.environ, RUSTC_BOOTSTRAP="1")
    subprocess.run(
        ["cargo", "rustdoc", "-q", "-p", package, "--lib", "--", "-Z", "unstable-options", "--output-format", "json"],
        check=True,
        cwd=ROOT,
        env=environment,
    )
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return json.loads((target / "doc" / f"{package.replace('-', '_')}.json").read_text(encoding="utf-8"))


class Listing:
    def __init__(self, crate):
        self.index, self.item_lines = crate["index"], set()
        self.add_module(self.index[str(crate["root"])], "")

    def find_item(self, item_id):
        return self.index.get(str(item_id))

    def add_module(self, module, path):
        for item_id in module["inner"]["module"]["items"]:
            item = self.find_item(item_id)
            if item is not None:
                self.add_item(item, path)

    def add_item(self, item, path, name=None):
        ((kind, inner),) = item["inner"].items()
        full_path = f"{path}{name or item['name']}"
        if kind == "use":
            target = self.find_item(inner["id"]) if inner["id"] is not None else None
            if inner["is_glob"]:
                if target and "module" in target["inner"]:
                    self.add_module(target, path)
            elif target is None:
                self.item_lines.add(f"use {path}{inner['name']} = {inner['source']}")
            else:
                self.add_item(target, path, inner["name"])
        elif kind == "module":
            self.item_lines.add(f"mod {full_path}")
            self.add_module(item, full_path + "::")
        elif kind == "function":
            self.item_lines.add(self.format_function(full_path, inner))
        elif kind in ("struct", "enum", "union", "trait"):
            self.add_container(kind, inner, item, full_path)
        elif kind == "constant":
            self.item_lines.add(f"const {full_path}: {self.format_type(inner['type'])}")
        elif kind == "static":
            self.item_lines.add(f"static {full_path}: {self.format_type(inner['type'])}")
        else:
            self.item_lines.add(f"{kind} {full_path}")

    def add_container(self, kind, inner, item, full_path):
        exhaustive = "" if "non_exhaustive" not in json.dumps(item["attrs"]) else " (non-exhaustive)"
        self.item_lines.add(f"{kind} {full_path}{exhaustive}")
        if kind == "trait":
            for item_id in inner["items"]:
                self.add_item(self.find_item(item_id), full_path + "::")
            return
        if kind == "enum":
            for item_id in inner["variants"]:
                self.add_variant(self.find_item(item_id), full_path)
        else:
            shape = inner["kind"] if kind == "struct" else {"plain": inner}
            fields = shape.get("plain", {}).get("fields", []) if isinstance(shape, dict) else []
            fields += (
                [item_id for item_id in shape.get("tuple", []) if item_id is not None]
                if isinstance(shape, dict)
                else []
            )
            self.add_fields(fields, full_path)
        for item_id in inner["impls"]:
            self.add_impl(self.find_item(item_id), full_path)

    def add_fields(self, item_ids, full_path):
        for field in filter(None, map(self.find_item, item_ids)):
            self.item_lines.add(
                f"field {full_path}.{field['name']}: {self.format_type(field['inner']['struct_field'])}"
            )

    def add_variant(self, variant, full_path):
        name, kind = f"{full_path}::{variant['name']}", variant["inner"]["variant"]["kind"]
        self.item_lines.add(f"variant {name}")
        if isinstance(kind, dict):
            self.add_fields(kind["tuple"] if "tuple" in kind else kind["struct"]["fields"], name)

    def add_impl(self, item, full_path):
        if item is None:
            return
        inner = item["inner"]["impl"]
        if inner["is_synthetic"] or inner["blanket_impl"]:
            return
        if inner["trait"] is not None and inner["trait"]["path"] == "StructuralPartialEq":
            return
        if inner["trait"] is not None:
            if not item["attrs"] or "automatically_derived" not in json.dumps(item["attrs"]):
                self.item_lines.add(
                    f"impl {inner['trait']['path']}{self.format_arguments(inner['trait']['args'])} for {full_path}"
                )
            else:
                self.item_lines.add(f"impl {inner['trait']['path']} for {full_path}")
            return
        for item_id in inner["items"]:
            if self.find_item(item_id) is not None:
                self.add_item(self.find_item(item_id), full_path + "::")

    def format_function(self, full_path, inner):
        header, signature = inner["header"], inner["sig"]
        qualifiers = [
            qualifier
            for qualifier, key in (("const", "is_const"), ("unsafe", "is_unsafe"), ("async", "is_async"))
            if header[key]
        ]
        inputs = ", ".join(
            name if name == "self" and parameter == {"generic": "Self"} else f"{name}: {self.format_type(parameter)}"
            for name, parameter in signature["inputs"]
        )
        output = f" -> {self.format_type(signature['output'])}" if signature["output"] else ""
        return " ".join([*qualifiers, f"fn {full_path}({inputs}){output}"])

    def format_arguments(self, arguments):
        if not arguments:
            return ""
        inner = arguments.get("angle_bracketed")
        if inner is None:
            parenthesized = arguments.get("parenthesized", {})
            output = f" -> {self.format_type(parenthesized['output'])}" if parenthesized.get("output") else ""
            return f"({', '.join(map(self.format_type, parenthesized.get('inputs', [])))}){output}"
        formatted = [
            argument.get("lifetime") or (self.format_type(argument["type"]) if "type" in argument else "_")
            for argument in inner["args"]
        ]
        formatted += [
            f"{constraint['name']} = {self.format_type(constraint['binding']['equality']['type'])}"
            for constraint in inner["constraints"]
            if "equality" in constraint["binding"] and "type" in constraint["binding"]["equality"]
        ]
        return f"<{', '.join(formatted)}>" if formatted else ""

    def format_type(self, type_json):
        ((name, inner),) = type_json.items() if isinstance(type_json, dict) else ((type_json, None),)
        if name == "resolved_path":
            return inner["path"].rpartition("::")[2] + self.format_arguments(inner["args"])
        if name in ("primitive", "generic"):
            return inner
        if name == "borrowed_ref":
            lifetime = f"{inner['lifetime']} " if inner["lifetime"] else ""
            return f"&{lifetime}{'mut ' if inner['is_mutable'] else ''}{self.format_type(inner['type'])}"
        if name == "raw_pointer":
            return f"*{'mut' if inner['is_mutable'] else 'const'} {self.format_type(inner['type'])}"
        if name == "slice":
            return f"[{self.format_type(inner)}]"
        if name == "array":
            return f"[{self.format_type(inner['type'])}; {inner['len']}]"
        if name == "tuple":
            return f"({', '.join(map(self.format_type, inner))})"
        if name in ("impl_trait", "dyn_trait"):
            bounds = inner if name == "impl_trait" else inner["traits"]
            traits = [
                bound.get("trait_bound", bound).get("trait")
                for bound in bounds
                if isinstance(bound, dict) and ("trait_bound" in bound or "trait" in bound)
            ]
            return f"{name[:-6]} " + " + ".join(
                bound["path"] + self.format_arguments(bound["args"]) for bound in traits
            )
        if name == "qualified_path":
            return f"{self.format_type(inner['self_type'])}::{inner['name']}"
        if name == "function_pointer":
            return f"fn({', '.join(self.format_type(parameter) for _, parameter in inner['sig']['inputs'])})"
        return name


def main():
    changed_crates = 0
    for package, directory in CRATES.items():
        crate = rustdoc_json(package)
        if crate["format_version"] not in RUSTDOC_FORMATS:
            print(
                f"SKIPPED api: this toolchain writes format {crate['format_version']} of rustdoc's JSON,"
                f" not {RUSTDOC_FORMATS}",
                file=sys.stderr,
            )
            sys.exit(1 if os.environ.get("CI") else 0)
        lines = sorted(Listing(crate).item_lines)
        file = ROOT / directory / "public-api.txt"
        if "--write" in sys.argv:
            file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        expected_lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        diff = list(difflib.unified_diff(expected_lines, lines, str(file.relative_to(ROOT)), package, n=0, lineterm=""))
        changed_crates += bool(diff)
        print("\n".join(diff), end="\n" if diff else "")
        print(f"api: {package}: {len(lines)} items")
    sys.exit(1 if changed_crates else 0)


main()
