#!/usr/bin/env python3
"""Reports code that creates files or opens them for writing outside the designated places: the `files` crate, and
`_files.py` in the Python package. Those two refuse links and directories of other users. Tests are ignored.

    ci/files.py
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Crates that are not part of any product.
NOT_SHIPPED = {"files", "fuzz", "tests"}
RUST_WRITES = re.compile(
    r"\bFile::create(_new)?\b|\bfs::(write|copy|create_dir(_all)?|hard_link)\b|\bDirBuilder\b(?!,)|\bsymlink(at)?\("
    r"|\bOFlags::(CREATE|WRONLY|RDWR|TRUNC|TMPFILE)\b|\b(mkdir|mknod|link)at\("
    r"|\blibc::(open(at)?(64)?|creat|mkdir(at)?|mknod(at)?|mkfifo|mk[ds]temp|mkostemp|linkat|O_CREAT|O_WRONLY|O_RDWR)\b"
)
# Calls of `OpenOptions` that open a file for writing.
RUST_WRITE_OPTIONS = re.compile(
    r"\b(?:OpenOptions::new|File::options)\(\)[^;]*?\.(?:write|append|create|create_new|truncate)\("
)
PYTHON_WRITES = re.compile(
    r"""\b(os\.(open|mkdir|makedirs|link|symlink|rename|replace|mkfifo|mknod)|shutil\.\w+|tempfile\.\w+)\("""
    r"""|\.(write_text|write_bytes|mkdir|touch|symlink_to|hardlink_to)\(|(?<![\w.])open\([^)]*["'][rb]*[wax+]"""
)
# Files that may write without the designated functions, each with its reason.
EXCEPTIONS = {
    "jitlisten/src/sink/image/pages.rs": "/proc/self/mem",
    "shim/src/process/detour/write.rs": "/proc/self/mem",
}


def without_tests(text):
    text = re.sub(r"//.*", "", text)
    return re.split(r"#\[cfg\((?:all\()?test", text)[0]


def rust_sources():
    for source in sorted(path.parent / "src" for path in ROOT.glob("*/Cargo.toml")):
        if source.parent.name in NOT_SHIPPED:
            continue
        for file in sorted(source.rglob("*.rs")):
            if file.name != "tests.rs" and "tests" not in file.relative_to(source).parts:
                yield file, without_tests(file.read_text(encoding="utf-8")), (RUST_WRITES, RUST_WRITE_OPTIONS)


def python_sources():
    for file in sorted((ROOT / "python/jitlisten").rglob("*.py")):
        if file.name != "_files.py":
            yield file, re.sub(r"#.*", "", file.read_text(encoding="utf-8")), (PYTHON_WRITES,)


def main():
    problems, used_exceptions = [], set()
    for file, text, patterns in [*rust_sources(), *python_sources()]:
        name = str(file.relative_to(ROOT))
        matches = [match[0].split("\n")[0] for pattern in patterns for match in pattern.finditer(text)]
        if matches and name in EXCEPTIONS:
            used_exceptions.add(name)
        else:
            problems += [f"{name} has {match}" for match in matches]
    problems += [f"{name} needs no exception" for name in sorted(set(EXCEPTIONS) - used_exceptions)]
    for problem in problems:
        print(f"files: {problem}: make it by the crate `files` or python/jitlisten/_files.py")
    sys.exit(1 if problems else 0)


main()
