#!/usr/bin/env python3
"""What must hold before a release, as far as it can be checked here: `make release-check`, after `make wheel`.

* One version: the workspace, `include/jitlisten.h`, CHANGELOG.md, and the names of the wheels and the source distribution.
* The published crates are packaged as a registry would have them, twice, with equal bytes.
* Every wheel contains a licence file of each crate that is linked into its binaries.

No tool knows where this project repeats its version, or which crates are in its wheels; `cargo package` does not compare two runs. Not checked
here: `twine check` (`uvx twine check target/wheels/*`), equal bytes of two wheels, `cargo deny check advisories`.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
WHEELS = ROOT / "target/wheels"
PUBLISHED = ["jitlisten-names", "jitlisten-unwinder", "unwind-register", "jitlisten"]
#: What is linked into the binaries of a wheel.
LINKED = ["jitlisten-cli", "jitlisten-capi"]


def version():
    return re.search(r'^version = "(.+)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]


def other_versions():
    header = re.search(r'JITLISTEN_VERSION "(.+)"', (ROOT / "include/jitlisten.h").read_text())[1]
    yield "include/jitlisten.h", header
    yield "CHANGELOG.md", re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)[1]
    for path in WHEELS.glob("jitlisten-*"):
        yield path.name, re.match(r"jitlisten-([^-]+?)(?:-|\.tar)", path.name)[1]


def packaged(directory):
    words = [word for crate in PUBLISHED for word in ("-p", crate)]
    subprocess.run(["cargo", "package", *words, "--no-verify", "--offline", "--quiet", "--target-dir", directory], cwd=ROOT, check=True)
    return {path.name: path.read_bytes() for path in pathlib.Path(directory, "package").glob("*.crate")}


def linked_crates():
    """Names of the crates of others in the binaries, without build scripts and procedural macros."""
    words = [word for crate in LINKED for word in ("-p", crate)]
    command = ["cargo", "tree", *words, "--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}", "--offline"]
    tree = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    metadata = subprocess.run(["cargo", "metadata", "--no-deps", "--format-version", "1"], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    ours = {package["name"] for package in json.loads(metadata)["packages"]}
    return {line.split()[0] for line in tree.splitlines() if line} - ours


def problems():
    for place, found in other_versions():
        if found != version():
            yield f"{place} has version {found}, the workspace {version()}"
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        crates, again = packaged(first), packaged(second)
    if len(crates) != len(PUBLISHED):
        yield f"{len(crates)} of {len(PUBLISHED)} crates were packaged"
    yield from (f"{name} differs between two runs" for name in crates if crates[name] != again.get(name))
    wheels = list(WHEELS.glob("*.whl"))
    if not wheels:
        yield "there is no wheel: make wheel"
    for wheel in wheels:
        licences = [name for name in zipfile.ZipFile(wheel).namelist() if "/licenses/" in name]
        missing = sorted(crate for crate in linked_crates() if not any(f"/{crate}" in name for name in licences))
        if missing:
            yield f"{wheel.name} lacks the licence texts of {len(missing)} linked crates: {', '.join(missing)}"


def main():
    found = list(problems())
    for problem in found:
        print("release:", problem)
    print(f"release: version {version()}, {len(found)} problems")
    sys.exit(1 if found else 0)


main()
