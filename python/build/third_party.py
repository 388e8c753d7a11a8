"""The crates of others in the two binaries of a wheel: THIRD-PARTY-LICENSES, their licence texts, as their packages
have them; and the bill of materials (SBOM). maturin's own has only the crates of the command, and paths of the machine
that built it."""

import collections
import functools
import json
import pathlib
import re
import subprocess

#: What is linked into a wheel.
_LINKED = ("jitlisten-cli", "jitlisten-capi")
_TEXTS = re.compile(r"(LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|UNLICENSE)([-._].*)?", re.IGNORECASE)
_HEAD = (
    "The binaries of this package contain parts of these crates of Rust. A crate with several licences may be used"
    " under each of them.\n"
)


@functools.lru_cache(maxsize=None)
def linked_crates():
    """Their packages, as `cargo metadata` describes them, without build scripts and procedural macros."""
    host = re.search(
        r"^host: (.*)$", subprocess.run(["rustc", "-vV"], check=True, stdout=subprocess.PIPE, text=True).stdout, re.M
    )[1]
    command = ["cargo", "metadata", "--format-version", "1", "--filter-platform", host]
    metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    dependencies = {node["id"]: node["deps"] for node in metadata["resolve"]["nodes"]}
    todo = [key for key, package in packages.items() if package["name"] in _LINKED]
    seen = set()
    while todo:
        key = todo.pop()
        is_macro = any("proc-macro" in target["kind"] for target in packages[key]["targets"])
        if key not in seen and not is_macro:
            seen.add(key)
            todo += [
                each["pkg"] for each in dependencies[key] if any(kind["kind"] is None for kind in each["dep_kinds"])
            ]
    return sorted((packages[key] for key in seen if packages[key]["source"]), key=lambda package: package["name"])


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


def _texts_of(crate):
    files = sorted(pathlib.Path(crate["manifest_path"]).parent.iterdir())
    found = [
        path.read_text(encoding="utf-8", errors="replace")
        for path in files
        if path.is_file() and _TEXTS.fullmatch(path.name)
    ]
    if not found and crate["license"] in ("MIT", "0BSD"):
        # Its package has none. The text of these licences is always the same.
        ours = pathlib.Path("LICENSE-MIT").read_text(encoding="utf-8")
        same = _0BSD if crate["license"] == "0BSD" else ours[ours.index("Permission is hereby") :]
        whose = ", ".join(crate["authors"]) or f"the authors of {crate['name']}"
        found = [f"Copyright (c) {whose}\n\n{same}"]
    if not found:
        raise RuntimeError(f"the package of {crate['name']} has no licence text")
    return found


def text():
    crates = linked_crates()
    names = ", ".join(f"{crate['name']} {crate['version']} ({crate['license']})" for crate in crates)
    users = collections.defaultdict(list)
    for crate in crates:
        for licence in _texts_of(crate):
            users[licence.strip()].append(crate["name"])
    texts = (
        f"{'=' * 80}\n{', '.join(dict.fromkeys(whose))}\n{'=' * 80}\n\n{licence}\n" for licence, whose in users.items()
    )
    return "\n".join([_HEAD, names + "\n", *texts])


def bill_of_materials(version):
    """CycloneDX 1.5."""
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
    ours = {"type": "application", "name": "jitlisten", "version": version, "purl": f"pkg:pypi/jitlisten@{version}"}
    return json.dumps(
        {
            "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "metadata": {"component": ours},
            "components": crates,
        },
        indent=1,
    )
