"""Third-party crates in the two binaries of a wheel: their licence texts as found in their packages
(THIRD-PARTY-LICENSES), and the bill of materials (SBOM). maturin's own SBOM covers only the crates of the command, and
contains paths of the build machine.
"""

import collections
import functools
import json
import pathlib
import re
import subprocess

#: Crates whose binaries are in a wheel.
_ROOT_CRATES = ("jitlisten-cli", "jitlisten-capi")
_LICENCE_FILES = re.compile(r"(LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|UNLICENSE)([-._].*)?", re.IGNORECASE)
_HEADER = (
    "The binaries of this package contain parts of these crates of Rust. A crate with several licences may be used"
    " under each of them.\n"
)


@functools.lru_cache(maxsize=None)
def linked_crates():
    """Returns the packages of third-party crates as described by `cargo metadata`, without build scripts and procedural
    macros."""
    host = re.search(
        r"^host: (.*)$", subprocess.run(["rustc", "-vV"], check=True, stdout=subprocess.PIPE, text=True).stdout, re.M
    )[1]
    command = ["cargo", "metadata", "--format-version", "1", "--filter-platform", host]
    metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    dependencies = {node["id"]: node["deps"] for node in metadata["resolve"]["nodes"]}
    worklist = [key for key, package in packages.items() if package["name"] in _ROOT_CRATES]
    visited = set()
    while worklist:
        key = worklist.pop()
        is_macro = any("proc-macro" in target["kind"] for target in packages[key]["targets"])
        if key not in visited and not is_macro:
            visited.add(key)
            worklist += [
                dependency["pkg"]
                for dependency in dependencies[key]
                if any(kind["kind"] is None for kind in dependency["dep_kinds"])
            ]
    return sorted((packages[key] for key in visited if packages[key]["source"]), key=lambda package: package["name"])


_0BSD = """\
Permission to use, copy, modify, and/or distribute this software for any
purpose with or without fee is hereby granted.

THE SOFTWARE IS PROVIDED "AS IS" AND THE AUTHOR DISCLAIMS ALL WARRANTIES WITH
REGARD TO THIS SOFTWARE INCLUDING ALL IMPLIED WARRANTIES OF MERCHANTABILITY
AND FITNESS. IN NO EVENT SHALL THE AUTHOR BE LIABLE FOR ANY SPECIAL, DIRECT,
INDIRECT, OR CONSEQUENTIAL DAMAGES OR ANY DAMAGES WHATSOEVER RESULTING FROM
LOSS OF USE, DATA OR PROFITS, WHETHER IN AN ACTION OF CONTRACT, NEGLIGENCE OR
OTHER TORTIOUS ACTION, ARISING OUT OF OR IN CONNECTION WITH THE USE OR
PERFORMANCE OF THIS SOFTWARE.
"""


def _licence_texts(crate):
    files = sorted(pathlib.Path(crate["manifest_path"]).parent.iterdir())
    texts = [
        path.read_text(encoding="utf-8", errors="replace")
        for path in files
        if path.is_file() and _LICENCE_FILES.fullmatch(path.name)
    ]
    if not texts and crate["license"] in ("MIT", "0BSD"):
        # The package contains no licence file, but the text of these licences is always the same.
        mit_text = pathlib.Path("LICENSE-MIT").read_text(encoding="utf-8")
        licence_text = _0BSD if crate["license"] == "0BSD" else mit_text[mit_text.index("Permission is hereby") :]
        copyright_holders = ", ".join(crate["authors"]) or f"the authors of {crate['name']}"
        texts = [f"Copyright (c) {copyright_holders}\n\n{licence_text}"]
    if not texts:
        raise RuntimeError(f"the package of {crate['name']} has no licence text")
    return texts


def text():
    crates = linked_crates()
    names = ", ".join(f"{crate['name']} {crate['version']} ({crate['license']})" for crate in crates)
    crates_by_licence = collections.defaultdict(list)
    for crate in crates:
        for licence in _licence_texts(crate):
            crates_by_licence[licence.strip()].append(crate["name"])
    texts = (
        f"{'=' * 80}\n{', '.join(dict.fromkeys(crate_names))}\n{'=' * 80}\n\n{licence}\n"
        for licence, crate_names in crates_by_licence.items()
    )
    return "\n".join([_HEADER, names + "\n", *texts])


def bill_of_materials(version):
    """Returns the bill of materials in CycloneDX 1.5."""
    crates = [
        {
            "type": "library",
            "name": crate["name"],
            "version": crate["version"],
            "purl": f"pkg:cargo/{crate['name']}@{crate['version']}",
            "licenses": [{"expression": crate["license"].replace("/", " OR ")}],
        }
        for crate in linked_crates()
    ]
    component = {
        "type": "application",
        "name": "jitlisten",
        "version": version,
        "purl": f"pkg:pypi/jitlisten@{version}",
    }
    return json.dumps(
        {
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": {"component": component},
            "components": crates,
        },
        indent=1,
    )
