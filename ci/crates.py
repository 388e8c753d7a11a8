#!/usr/bin/env python3
"""Facts about the crates that need no build: licences, versions and sources of what they depend on, and whether those
that are published have all that their page needs.

    ci/crates.py

`cargo deny` does the first part, and would have to be built first; it and the registry's advisories are for a release,
see CONTRIBUTING.md.
"""

import collections
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGETS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")
# Any one of them is enough, of each part of an expression.
ALLOWED = {
    "0BSD",
    "MIT",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "Unlicense",
    "Unicode-3.0",
    "Apache-2.0 WITH LLVM-exception",
}
# The licence stays with the files of that crate, which are used unchanged, in the command only.
EXCEPTIONS = {"inferno": "CDDL-1.0"}
# In two versions: procedural macros, which are in no binary of ours.
TWICE = {"syn"}
# What a package that is published has in it.
NEEDED = {"LICENSE-MIT", "LICENSE-APACHE", "README.md", "Cargo.toml"}


def metadata():
    filters = [word for target in TARGETS for word in ("--filter-platform", target)]
    done = subprocess.run(
        ["cargo", "metadata", "--locked", "--format-version", "1", *filters],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
    )
    return json.loads(done.stdout)["packages"]


def is_allowed(package):
    expression = (package["license"] or "").replace("/", " OR ")
    if EXCEPTIONS.get(package["name"]) == expression:
        return True
    # AND binds tighter than OR; the parentheses that occur are around an OR.
    parts = re.split(r"\s+AND\s+(?![^(]*\))", expression)
    return all(
        any(choice.strip() in ALLOWED for choice in re.split(r"\s+OR\s+", part.strip().strip("()"))) for part in parts
    )


def dependencies(packages):
    versions = collections.defaultdict(set)
    for package in packages:
        versions[package["name"]].add(package["version"])
        if not is_allowed(package):
            yield f"{package['name']} {package['version']} has the licence {package['license']!r}"
        if package["source"] not in (None, "registry+https://github.com/rust-lang/crates.io-index"):
            yield f"{package['name']} comes from {package['source']}"
    for name, found in versions.items():
        if len(found) > 1 and name not in TWICE:
            yield f"{name} is there in the versions {', '.join(sorted(found))}"


def published(package):
    name, version = package["name"], package["version"]
    for field in ("description", "license", "readme", "keywords", "categories", "rust_version"):
        if not package[field]:
            yield f"{name} has no {field}"
    for dependency in package["dependencies"]:
        if dependency["source"] is None and dependency["req"] == "*":
            yield f"{name} names no version of {dependency['name']}"
    listed = subprocess.run(
        ["cargo", "package", "--list", "--allow-dirty", "-p", name],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.split("\n")
    for file in sorted(NEEDED - set(listed)):
        yield f"the package {name} {version} has no {file}"


def main():
    packages = metadata()
    ours = [package for package in packages if package["source"] is None and package["publish"] != []]
    problems = list(dependencies(packages)) + [problem for package in ours for problem in published(package)]
    for problem in problems:
        print(f"crates: {problem}")
    print(
        f"crates: {len(packages)} crates, of which {', '.join(package['name'] for package in ours)} are published;"
        f" {len(problems)} problems"
    )
    sys.exit(1 if problems else 0)


main()
