#!/usr/bin/env python3
"""Checks facts about the crates that need no build: licences, versions, sources and features of the dependencies, and
whether the published crates have everything that their page on crates.io needs.

    ci/crates.py

`cargo deny` checks licences and sources, too, but must be built first. It runs before a release, together with the
registry's advisories: see CONTRIBUTING.md.
"""

import collections
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGETS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")
# Accepted licences. At least one of them must occur in every operand of an AND expression.
ALLOWED_LICENCES = {
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
# Licences accepted for a single crate. inferno is used unmodified and only by the command; its files keep their
# licence.
LICENCE_EXCEPTIONS = {"inferno": "CDDL-1.0"}
# Crates that may occur in two versions: libraries of procedural macros, which no binary contains.
ALLOWED_DUPLICATES = {"syn"}
# Files that every published package must contain.
REQUIRED_FILES = {"LICENSE-MIT", "LICENSE-APACHE", "README.md", "Cargo.toml"}


def read_metadata():
    filters = [argument for target in TARGETS for argument in ("--filter-platform", target)]
    output = subprocess.run(
        ["cargo", "metadata", "--locked", "--format-version", "1", *filters],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
    )
    return json.loads(output.stdout)["packages"]


def is_allowed(package):
    expression = (package["license"] or "").replace("/", " OR ")
    if LICENCE_EXCEPTIONS.get(package["name"]) == expression:
        return True
    # AND binds more tightly than OR, and parentheses enclose only ORs.
    parts = re.split(r"\s+AND\s+(?![^(]*\))", expression)
    return all(
        any(choice.strip() in ALLOWED_LICENCES for choice in re.split(r"\s+OR\s+", part.strip().strip("()")))
        for part in parts
    )


def dependency_problems(packages):
    versions = collections.defaultdict(set)
    for package in packages:
        versions[package["name"]].add(package["version"])
        if not is_allowed(package):
            yield f"{package['name']} {package['version']} has the licence {package['license']!r}"
        if package["source"] not in (None, "registry+https://github.com/rust-lang/crates.io-index"):
            yield f"{package['name']} comes from {package['source']}"
    for name, crate_versions in versions.items():
        if len(crate_versions) > 1 and name not in ALLOWED_DUPLICATES:
            yield f"{name} is there in the versions {', '.join(sorted(crate_versions))}"


def read_features(package):
    output = subprocess.run(
        ["cargo", "tree", "-p", package, "-f", "{p}: {f}", *"--locked -e normal --prefix none --no-dedupe".split()],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    return dict(line.split(": ", 1) for line in output.splitlines() if ": " in line)


def feature_problems():
    """The wheel builds the library and the command one after the other. A crate whose features differ, and all that
    depend on it, would be compiled twice."""
    library, command = read_features("jitlisten-capi"), read_features("jitlisten-cli")
    for crate in sorted(library.keys() & command.keys()):
        if library[crate] != command[crate]:
            yield f"{crate} has the features {library[crate]} in the library, and {command[crate]} in the command"


def publication_problems(package):
    name, version = package["name"], package["version"]
    for field in ("description", "license", "readme", "keywords", "categories", "rust_version"):
        if not package[field]:
            yield f"{name} has no {field}"
    for dependency in package["dependencies"]:
        if dependency["source"] is None and dependency["req"] == "*":
            yield f"{name} names no version of {dependency['name']}"
    packaged_files = subprocess.run(
        ["cargo", "package", "--list", "--allow-dirty", "-p", name],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.split("\n")
    for file in sorted(REQUIRED_FILES - set(packaged_files)):
        yield f"the package {name} {version} has no {file}"


def main():
    packages = read_metadata()
    published = [package for package in packages if package["source"] is None and package["publish"] != []]
    problems = [*dependency_problems(packages), *feature_problems()]
    problems += [problem for package in published for problem in publication_problems(package)]
    for problem in problems:
        print(f"crates: {problem}")
    print(
        f"crates: {len(packages)} crates, of which {', '.join(package['name'] for package in published)} are published;"
        f" {len(problems)} problems"
    )
    sys.exit(1 if problems else 0)


main()
