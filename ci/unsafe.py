#!/usr/bin/env python3
"""Checks that every source file contains `#![forbid(unsafe_code)]` if neither it nor a module below it uses `unsafe`,
or that its crate has `#![deny(unsafe_code)]`. There, only files that use `unsafe` may allow it. Tests, examples and
fuzz targets are separate programs and are not checked. No lint of rustc or clippy requires the attribute.

    ci/unsafe.py         lists the files without the attribute
    ci/unsafe.py --fix   adds the attribute
"""

import pathlib
import re
import sys

ATTRIBUTE = "#![forbid(unsafe_code)]"
DENIED = "#![deny(unsafe_code)]"
ALLOWED = "allow(unsafe_code)"


def uses_unsafe(file):
    text = re.sub(r"//.*", "", file.read_text(encoding="utf-8"))
    return re.search(r"\bunsafe\b(?!_)|\b(?:no_mangle|export_name|link_section)\b|\basm!", text) is not None


def descendants(file):
    """Returns the files of the modules below the module in `file`."""
    if file.name == "lib.rs" or file.name == "main.rs" or file.name == "mod.rs":
        directory = file.parent
    else:
        directory = file.with_suffix("")
    return [other for other in directory.rglob("*.rs") if other != file] if directory.is_dir() else []


def add_attribute(file):
    lines = file.read_text(encoding="utf-8").split("\n")
    index = 0
    while index < len(lines) and lines[index].startswith("//!"):
        index += 1
    lines[index:index] = ["", ATTRIBUTE] if index else [ATTRIBUTE, ""]
    file.write_text("\n".join(lines), encoding="utf-8")


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    missing = 0
    for source in sorted(path.parent / "src" for path in root.glob("*/Cargo.toml") if (path.parent / "src").is_dir()):
        heads = [head for head in (source / "lib.rs", source / "main.rs") if head.exists()]
        is_denied = any(DENIED in head.read_text(encoding="utf-8") for head in heads)
        for file in sorted(source.rglob("*.rs")):
            if is_denied and not uses_unsafe(file) and ALLOWED in file.read_text(encoding="utf-8"):
                missing += 1
                print(f"unsafe: {file.relative_to(root)} need not allow it")
            if is_denied or any(map(uses_unsafe, [file, *descendants(file)])):
                continue
            ancestors = [file, *(other for other in source.rglob("*.rs") if file in descendants(other))]
            if any(ATTRIBUTE in other.read_text(encoding="utf-8") for other in ancestors):
                continue
            missing += 1
            print(f"unsafe: {file.relative_to(root)} can forbid it")
            if "--fix" in sys.argv:
                add_attribute(file)
    sys.exit(1 if missing and "--fix" not in sys.argv else 0)


main()
