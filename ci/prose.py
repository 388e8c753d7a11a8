#!/usr/bin/env python3
"""Checks the English of comments and names against the rates in ci/prose.toml, and that files named in comments exist.

Usage:

    ci/prose.py               fails if a rate is above its limit
    ci/prose.py --list NAME   prints the hits of one pattern
"""

import collections
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
SLASHES = re.compile(r"^\s*(?P<mark>///|//!|//)(?P<words>.*)")
HASHES = re.compile(r"^\s*(?P<mark>#)(?!!)(?P<words>.*)")
MARKS = {".rs": SLASHES, ".js": SLASHES, ".c": SLASHES, ".cpp": SLASHES, ".h": SLASHES, ".hpp": SLASHES}
MARKS |= {".py": HASHES, ".sh": HASHES, ".toml": HASHES}
BLOCK = {".c": ("/*", "*/"), ".h": ("/*", "*/"), ".cpp": ("/*", "*/"), ".hpp": ("/*", "*/"), ".js": ("/*", "*/")}
BLOCK |= {".py": ('"""', '"""')}
#: A path in a comment. External projects that we quote (LLVM, CPython, the kernel) contain no files of `OUR_KINDS`.
FILE = re.compile(r"(?<![\w./<*-])(?:[\w-]+/)*\w[\w.-]*\.(?:rs|py|sh|toml|tsv|md)\b(?!\()")
OUR_KINDS = {".rs", ".sh", ".toml", ".tsv", ".md"}
LINE_NUMBER = re.compile(r"(?<![\w/])((?:[\w-]+/)*\w+\.(?:rs|sh)):\d+\b")

#: A line of a comment. `begins` is true for the first line of a doc comment.
Comment = collections.namedtuple("Comment", "file number words begins")


def tracked_files():
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [pathlib.Path(name) for name in names.split("\0") if name and (ROOT / name).is_file()]


def sources():
    """Tracked source files, as (path, text)."""
    return [(path, (ROOT / path).read_text(encoding="utf-8")) for path in tracked_files() if path.suffix in MARKS]


def comments(file, text):
    """Lines of comments, without marks. A block comment and a docstring count as doc comments."""
    opening, closing = BLOCK.get(file.suffix, (None, None))
    in_block, previous = False, ""
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        if in_block or (opening and stripped.startswith(opening)):
            begins = not in_block
            rest = stripped[len(opening) :] if begins else stripped
            in_block = closing not in rest
            words = rest.replace(closing, "").strip("* !")
            if words:
                yield Comment(file, number, words, begins)
            previous = ""
            continue
        match = MARKS[file.suffix].match(line)
        mark = match["mark"] if match else ""
        if match and match["words"].strip():
            yield Comment(file, number, match["words"].strip(), mark == "///" and previous != "///")
        previous = mark


def code(file, text):
    """Lines of Rust that are not comments."""
    if file.suffix == ".rs":
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip().startswith("//"):
                yield Comment(file, number, line.strip(), False)


def stale_paths(lines):
    """Comments that name a file which this repository lacks, or a line number of a file."""
    tracked = tracked_files()
    folders = {path.parts[0] for path in tracked if len(path.parts) > 1}
    ends = {"/".join(path.parts[start:]) for path in tracked for start in range(len(path.parts))}
    # `sampler/src/unwind/mod.rs` may be written as `sampler/unwind/mod.rs`.
    ends |= {end.replace("/src/", "/") for end in ends}
    for line in lines:
        for name in FILE.findall(line.words):
            path = pathlib.PurePath(name)
            is_ours = path.suffix in OUR_KINDS or (len(path.parts) > 1 and path.parts[0] in folders)
            if is_ours and name not in ends and path.parts[0] != "target":
                yield line, f"{name}: no such file"
        for name in LINE_NUMBER.findall(line.words):
            if name in ends:
                yield line, f"{name}: name the function, its line changes"


def main():
    wanted = sys.argv[2] if sys.argv[1:2] == ["--list"] else None
    with open(ROOT / "ci/prose.toml", "rb") as file:
        phrases = tomllib.load(file)["phrase"]
    texts = sources()
    every_comment = [line for path, text in texts for line in comments(path, text)]
    lines = {
        "comment lines": every_comment,
        "doc comments": [line for line in every_comment if line.begins],
        "lines of code": [line for path, text in texts for line in code(path, text)],
    }
    faults = []
    for phrase in phrases:
        pattern, where, limit = re.compile(phrase["pattern"]), phrase["where"], phrase["limit"]
        hits = [line for line in lines[where] if pattern.search(line.words)]
        if wanted == phrase["name"]:
            print("".join(f"{line.file}:{line.number}: {line.words}\n" for line in hits), end="")
        rate = 1000 * len(hits) / len(lines[where])
        if rate > limit:
            how = f"better: {phrase['better']} (ci/prose.py --list '{phrase['name']}')"
            faults.append(f"{phrase['name']}: {rate:.1f} per 1,000 {where}, at most {limit}; {how}")
    faults += [f"{line.file}:{line.number}: {fault}" for line, fault in stale_paths(every_comment)]
    if wanted is None:
        print("".join(f"prose: {fault}\n" for fault in faults), end="")
        sys.exit(1 if faults else 0)


main()
