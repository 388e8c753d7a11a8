#!/usr/bin/env python3
"""What must hold before a release, as far as it can be checked here: `make release-check`, after `make wheel`.

* One version: the workspace, `include/jitlisten.h`, CHANGELOG.md, the names of the wheels and of the source
  distribution.
* The published crates are packaged as a registry would have them, twice, with equal bytes.
* Every wheel has a licence text of each crate that is linked into its binaries, and names it in its bill of materials.
* Package indexes accept the wheels and the source distribution (`twine check`), and no file of a wheel names a path of
  this machine.

No tool knows where this project repeats its version, or which crates are in its wheels; `cargo package` does not
compare two runs. The wheel of another clone of the same commit has equal bytes: not checked here, because it takes a
second build.
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
PUBLISHED = ["jitlisten-files", "jitlisten-names", "jitlisten-unwinder", "unwind-register", "jitlisten"]


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
    subprocess.run(
        ["cargo", "package", *words, "--no-verify", "--offline", "--allow-dirty", "--quiet", "--target-dir", directory],
        cwd=ROOT,
        check=True,
    )
    return {path.name: path.read_bytes() for path in pathlib.Path(directory, "package").glob("*.crate")}


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
        for what, named in lists.items():
            missing = sorted(crate["name"] for crate in third_party.linked_crates() if crate["name"] not in named)
            if missing:
                yield f"{wheel.filename}: {what} without {len(missing)} linked crates: {', '.join(missing)}"
        here = [bytes(path) for path in (ROOT, pathlib.Path.home() / ".cargo")]
        for name, text in contents.items():
            if any(path in text for path in here):
                yield f"{wheel.filename}: {name} contains paths of this machine"
    twine = [ROOT / "target/wheel/tools/bin/twine", "check", "--strict", *map(str, WHEELS.glob("jitlisten-*"))]
    checked = subprocess.run(twine, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if checked.returncode:
        yield f"twine: {checked.stdout}"


def main():
    found = list(problems())
    for problem in found:
        print("release:", problem)
    print(f"release: version {version()}, {len(found)} problems")
    sys.exit(1 if found else 0)


main()
