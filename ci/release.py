#!/usr/bin/env python3
"""Checks the preconditions of a release, as far as possible on this machine. Run `make wheel` first, then
`make release-check`.

* The workspace, `include/jitlisten.h`, CHANGELOG.md, and the names of the wheels and of the source distribution have
  the same version.
* The published crates are packaged as for a registry, twice, with identical bytes.
* Every wheel contains a licence text for each crate linked into its binaries, and lists the crate in its bill of
  materials.
* Package indexes accept the wheels and the source distribution (`twine check`), and no file of a wheel contains a path
  of this machine.

No existing tool knows where this project repeats its version, or which crates are in its wheels. `cargo package` does
not compare two runs. A wheel built from another clone of the same commit has identical bytes; that is not checked here,
because it takes a second build.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python/build"))
import third_party  # noqa: E402

WHEELS = ROOT / "target/wheels"
PUBLISHED = [
    "jitlisten-files",
    "jitlisten-names",
    "jitlisten-unwinder",
    "unwind-register",
    "jitlisten",
    "jitlisten-llvm",
]


def workspace_version():
    return re.search(r'^version = "(.+)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]


def other_versions():
    header = re.search(r'JITLISTEN_VERSION "(.+)"', (ROOT / "include/jitlisten.h").read_text())[1]
    yield "include/jitlisten.h", header
    yield "CHANGELOG.md", re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)[1]
    for path in WHEELS.glob("jitlisten-*"):
        yield path.name, re.match(r"jitlisten-([^-]+?)(?:-|\.tar)", path.name)[1]


def package_crates(directory):
    arguments = [argument for crate in PUBLISHED for argument in ("-p", crate)]
    subprocess.run(
        [
            "cargo",
            "package",
            *arguments,
            "--no-verify",
            "--offline",
            "--allow-dirty",
            "--quiet",
            "--target-dir",
            directory,
        ],
        cwd=ROOT,
        check=True,
    )
    return {path.name: path.read_bytes() for path in pathlib.Path(directory, "package").glob("*.crate")}


def find_problems():
    for location, other_version in other_versions():
        if other_version != workspace_version():
            yield f"{location} has version {other_version}, the workspace {workspace_version()}"
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        crates, repackaged = package_crates(first), package_crates(second)
    if len(crates) != len(PUBLISHED):
        yield f"{len(crates)} of {len(PUBLISHED)} crates were packaged"
    yield from (f"{name} differs between two runs" for name in crates if crates[name] != repackaged.get(name))
    wheels = list(WHEELS.glob("*.whl"))
    if not wheels:
        yield "there is no wheel: make wheel"
    for wheel in map(zipfile.ZipFile, wheels):
        contents = {name: wheel.read(name) for name in wheel.namelist()}
        licences = contents["jitlisten/THIRD-PARTY-LICENSES"].decode()
        bill = json.loads(
            next(text for name, text in contents.items() if name.endswith("/sboms/jitlisten.cyclonedx.json"))
        )
        headings = set(re.findall(r"^={80}\n(.*)\n={80}$", licences, re.M))
        lists = {
            "licence texts": {name for heading in headings for name in heading.split(", ")},
            "bill of materials": {component["name"] for component in bill["components"]},
        }
        for list_name, names in lists.items():
            missing = sorted(crate["name"] for crate in third_party.linked_crates() if crate["name"] not in names)
            if missing:
                yield f"{wheel.filename}: {list_name} without {len(missing)} linked crates: {', '.join(missing)}"
        local_paths = [bytes(path) for path in (ROOT, pathlib.Path.home() / ".cargo")]
        for name, text in contents.items():
            if any(path in text for path in local_paths):
                yield f"{wheel.filename}: {name} contains paths of this machine"
    twine = [ROOT / "target/wheel/tools/bin/twine", "check", "--strict", *map(str, WHEELS.glob("jitlisten-*"))]
    twine_result = subprocess.run(twine, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if twine_result.returncode:
        yield f"twine: {twine_result.stdout}"


def main():
    problems = list(find_problems())
    for problem in problems:
        print("release:", problem)
    print(f"release: version {workspace_version()}, {len(problems)} problems")
    sys.exit(1 if problems else 0)


main()
