#!/usr/bin/env python3
"""`#![forbid(unsafe_code)]` stands in every source file of a crate that can have it: no `unsafe` in it, nor in a module
below it. Tests, examples and fuzz targets are programs of their own, and are not looked at. No lint of rustc or clippy
asks for the attribute.

    ci/unsafe.py         names the files where it is missing
    ci/unsafe.py --fix   writes it
"""

import pathlib
import re
import sys

ATTRIBUTE = "#![forbid(unsafe_code)]"


def uses_unsafe(file):
    text = re.sub(r"//.*", "", file.read_text(encoding="utf-8"))
    return re.search(r"\bunsafe\b(?!_)|\b(?:no_mangle|export_name|link_section)\b|\basm!", text) is not None


def below(file):
    """The files of the modules below the module in `file`."""
    if file.name == "lib.rs" or file.name == "main.rs" or file.name == "mod.rs":
        directory = file.parent
    else:
        directory = file.with_suffix("")
    return [other for other in directory.rglob("*.rs") if other != file] if directory.is_dir() else []


def add(file):
    lines = file.read_text(encoding="utf-8").split("\n")
    at = 0
    while at < len(lines) and lines[at].startswith("//!"):
        at += 1
    lines[at:at] = ["", ATTRIBUTE] if at else [ATTRIBUTE, ""]
    file.write_text("\n".join(lines), encoding="utf-8")


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    missing = 0
    for source in sorted(path.parent / "src" for path in root.glob("*/Cargo.toml") if (path.parent / "src").is_dir()):
        for file in sorted(source.rglob("*.rs")):
            if any(map(uses_unsafe, [file, *below(file)])):
                continue
            ancestors = [file, *(other for other in source.rglob("*.rs") if file in below(other))]
            if any(ATTRIBUTE in other.read_text(encoding="utf-8") for other in ancestors):
                continue
            missing += 1
            print(f"unsafe: {file.relative_to(root)} can forbid it")
            if "--fix" in sys.argv:
                add(file)
    sys.exit(1 if missing and "--fix" not in sys.argv else 0)


main()
