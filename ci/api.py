#!/usr/bin/env python3
"""What the published crates offer, one item a line, compared with CRATE/public-api.txt: a change of it is seen in
review, and needs a new version if it takes something away.

    ci/api.py           compares
    ci/api.py --write   writes the files anew

Read from rustdoc's JSON, which leaves out what is hidden in the documentation (`RUSTC_BOOTSTRAP=1`, as the format is
not stable; where the toolchain writes another one, the comparison is skipped, and fails in CI). `cargo public-api` does
the same with a nightly toolchain, which CI would have to have beside the one of the MSRV, and would have to be built
first.
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
FORMATS = (57,)


def documented(package):
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
        self.index, self.lines = crate["index"], set()
        self.module(self.index[str(crate["root"])], "")

    def item(self, number):
        return self.index.get(str(number))

    def module(self, module, path):
        for number in module["inner"]["module"]["items"]:
            item = self.item(number)
            if item is not None:
                self.add(item, path)

    def add(self, item, path, name=None):
        ((kind, inner),) = item["inner"].items()
        full = f"{path}{name or item['name']}"
        if kind == "use":
            target = self.item(inner["id"]) if inner["id"] is not None else None
            if inner["is_glob"]:
                if target and "module" in target["inner"]:
                    self.module(target, path)
            elif target is None:
                self.lines.add(f"use {path}{inner['name']} = {inner['source']}")
            else:
                self.add(target, path, inner["name"])
        elif kind == "module":
            self.lines.add(f"mod {full}")
            self.module(item, full + "::")
        elif kind == "function":
            self.lines.add(self.function(full, inner))
        elif kind in ("struct", "enum", "union", "trait"):
            self.container(kind, inner, item, full)
        elif kind == "constant":
            self.lines.add(f"const {full}: {self.type(inner['type'])}")
        elif kind == "static":
            self.lines.add(f"static {full}: {self.type(inner['type'])}")
        else:
            self.lines.add(f"{kind} {full}")

    def container(self, kind, inner, item, full):
        exhaustive = "" if "non_exhaustive" not in json.dumps(item["attrs"]) else " (non-exhaustive)"
        self.lines.add(f"{kind} {full}{exhaustive}")
        if kind == "trait":
            for number in inner["items"]:
                self.add(self.item(number), full + "::")
            return
        if kind == "enum":
            for number in inner["variants"]:
                self.variant(self.item(number), full)
        else:
            shape = inner["kind"] if kind == "struct" else {"plain": inner}
            fields = shape.get("plain", {}).get("fields", []) if isinstance(shape, dict) else []
            fields += (
                [number for number in shape.get("tuple", []) if number is not None] if isinstance(shape, dict) else []
            )
            self.fields(fields, full)
        for number in inner["impls"]:
            self.implementation(self.item(number), full)

    def fields(self, numbers, full):
        for field in filter(None, map(self.item, numbers)):
            self.lines.add(f"field {full}.{field['name']}: {self.type(field['inner']['struct_field'])}")

    def variant(self, variant, full):
        name, kind = f"{full}::{variant['name']}", variant["inner"]["variant"]["kind"]
        self.lines.add(f"variant {name}")
        if isinstance(kind, dict):
            self.fields(kind["tuple"] if "tuple" in kind else kind["struct"]["fields"], name)

    def implementation(self, item, full):
        if item is None:
            return
        inner = item["inner"]["impl"]
        if inner["is_synthetic"] or inner["blanket_impl"]:
            return
        if inner["trait"] is not None and inner["trait"]["path"] == "StructuralPartialEq":
            return
        if inner["trait"] is not None:
            if not item["attrs"] or "automatically_derived" not in json.dumps(item["attrs"]):
                self.lines.add(f"impl {inner['trait']['path']}{self.arguments(inner['trait']['args'])} for {full}")
            else:
                self.lines.add(f"impl {inner['trait']['path']} for {full}")
            return
        for number in inner["items"]:
            if self.item(number) is not None:
                self.add(self.item(number), full + "::")

    def function(self, full, inner):
        header, signature = inner["header"], inner["sig"]
        words = [
            word for word, key in (("const", "is_const"), ("unsafe", "is_unsafe"), ("async", "is_async")) if header[key]
        ]
        inputs = ", ".join(
            name if name == "self" and kind == {"generic": "Self"} else f"{name}: {self.type(kind)}"
            for name, kind in signature["inputs"]
        )
        output = f" -> {self.type(signature['output'])}" if signature["output"] else ""
        return " ".join([*words, f"fn {full}({inputs}){output}"])

    def arguments(self, arguments):
        if not arguments:
            return ""
        inner = arguments.get("angle_bracketed")
        if inner is None:
            called = arguments.get("parenthesized", {})
            output = f" -> {self.type(called['output'])}" if called.get("output") else ""
            return f"({', '.join(map(self.type, called.get('inputs', [])))}){output}"
        found = [
            argument.get("lifetime") or (self.type(argument["type"]) if "type" in argument else "_")
            for argument in inner["args"]
        ]
        found += [
            f"{bound['name']} = {self.type(bound['binding']['equality']['type'])}"
            for bound in inner["constraints"]
            if "equality" in bound["binding"] and "type" in bound["binding"]["equality"]
        ]
        return f"<{', '.join(found)}>" if found else ""

    def type(self, kind):
        ((name, inner),) = kind.items() if isinstance(kind, dict) else ((kind, None),)
        if name == "resolved_path":
            return inner["path"].rpartition("::")[2] + self.arguments(inner["args"])
        if name in ("primitive", "generic"):
            return inner
        if name == "borrowed_ref":
            lifetime = f"{inner['lifetime']} " if inner["lifetime"] else ""
            return f"&{lifetime}{'mut ' if inner['is_mutable'] else ''}{self.type(inner['type'])}"
        if name == "raw_pointer":
            return f"*{'mut' if inner['is_mutable'] else 'const'} {self.type(inner['type'])}"
        if name == "slice":
            return f"[{self.type(inner)}]"
        if name == "array":
            return f"[{self.type(inner['type'])}; {inner['len']}]"
        if name == "tuple":
            return f"({', '.join(map(self.type, inner))})"
        if name in ("impl_trait", "dyn_trait"):
            bounds = inner if name == "impl_trait" else inner["traits"]
            traits = [
                bound.get("trait_bound", bound).get("trait")
                for bound in bounds
                if isinstance(bound, dict) and ("trait_bound" in bound or "trait" in bound)
            ]
            return f"{name[:-6]} " + " + ".join(found["path"] + self.arguments(found["args"]) for found in traits)
        if name == "qualified_path":
            return f"{self.type(inner['self_type'])}::{inner['name']}"
        if name == "function_pointer":
            return f"fn({', '.join(self.type(kind) for _, kind in inner['sig']['inputs'])})"
        return name


def main():
    bad = 0
    for package, directory in CRATES.items():
        crate = documented(package)
        if crate["format_version"] not in FORMATS:
            print(
                f"SKIPPED api: this toolchain writes format {crate['format_version']} of rustdoc's JSON, not {FORMATS}",
                file=sys.stderr,
            )
            sys.exit(1 if os.environ.get("CI") else 0)
        lines = sorted(Listing(crate).lines)
        file = ROOT / directory / "public-api.txt"
        if "--write" in sys.argv:
            file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        recorded = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        difference = list(difflib.unified_diff(recorded, lines, str(file.relative_to(ROOT)), package, n=0, lineterm=""))
        bad += bool(difference)
        print("\n".join(difference), end="\n" if difference else "")
        print(f"api: {package}: {len(lines)} items")
    sys.exit(1 if bad else 0)


main()
