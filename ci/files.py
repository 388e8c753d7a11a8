#!/usr/bin/env python3
"""Files and directories are made in one place each: by the crate `files`, and in the Python package by `_files.py`.
Both refuse the links and directories of other users. Names every other place that makes a file or opens one for
writing. Tests are left out.

    ci/files.py
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
#: Crates whose sources are in no product.
NOT_SHIPPED = {"files", "fuzz", "tests"}
RUST = re.compile(
    r"\bFile::create(_new)?\b|\bfs::(write|copy|create_dir(_all)?|hard_link)\b|\bDirBuilder\b(?!,)|\bsymlink(at)?\("
    r"|\bOFlags::(CREATE|WRONLY|RDWR|TRUNC|TMPFILE)\b|\b(mkdir|mknod|link)at\("
    r"|\blibc::(open(at)?(64)?|creat|mkdir(at)?|mknod(at)?|mkfifo|mk[ds]temp|mkostemp|linkat|O_CREAT|O_WRONLY|O_RDWR)\b"
)
#: A chain of calls is one that writes if one of these is in it.
OPTIONS = re.compile(r"\b(?:OpenOptions::new|File::options)\(\)[^;]*?\.(?:write|append|create|create_new|truncate)\(")
PYTHON = re.compile(
    r"""\b(os\.(open|mkdir|makedirs|link|symlink|rename|replace|mkfifo|mknod)|shutil\.\w+|tempfile\.\w+)\("""
    r"""|\.(write_text|write_bytes|mkdir|touch|symlink_to|hardlink_to)\(|(?<![\w.])open\([^)]*["'][rb]*[wax+]"""
)
#: Exceptions, each with its reason.
ALLOWED = {
    "jitlisten/src/sink/image/pages.rs": "/proc/self/mem",
    "shim/src/process/detour/write.rs": "/proc/self/mem",
}


def without_tests(text):
    text = re.sub(r"//.*", "", text)
    return re.split(r"#\[cfg\((?:all\()?test", text)[0]


def rust():
    for source in sorted(path.parent / "src" for path in ROOT.glob("*/Cargo.toml")):
        if source.parent.name in NOT_SHIPPED:
            continue
        for file in sorted(source.rglob("*.rs")):
            if file.name != "tests.rs" and "tests" not in file.relative_to(source).parts:
                yield file, without_tests(file.read_text(encoding="utf-8")), (RUST, OPTIONS)


def python():
    for file in sorted((ROOT / "python/jitlisten").rglob("*.py")):
        if file.name != "_files.py":
            yield file, re.sub(r"#.*", "", file.read_text(encoding="utf-8")), (PYTHON,)


def main():
    found, used = [], set()
    for file, text, patterns in [*rust(), *python()]:
        name = str(file.relative_to(ROOT))
        matches = [match[0].split("\n")[0] for pattern in patterns for match in pattern.finditer(text)]
        if matches and name in ALLOWED:
            used.add(name)
        else:
            found += [f"{name} has {match}" for match in matches]
    found += [f"{name} needs no exception" for name in sorted(set(ALLOWED) - used)]
    for line in found:
        print(f"files: {line}: make it by the crate `files` or python/jitlisten/_files.py")
    sys.exit(1 if found else 0)


main()
