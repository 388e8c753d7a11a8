#!/usr/bin/env python3
"""Takes the safeguards of tests/mutations.toml away, one after the other, and runs the tests that must fail then.

    ci/mutations.py [WORD...]        those whose safeguard, file or tests contain one of the words; all by default

Each is an edit of a copy of the sources under target/mutations, which the library is built from as `cargo build` does
it. The tests run before, against that build without an edit, and must pass. Writes records/mutations.tsv. Fails where a
test passes without its safeguard, and where an edit fits its file no more. `cargo mutants` invents edits by itself, and
asks whether any test fails: it does not know which edit is a safeguard, and runs the whole suite for each.
"""

import datetime
import os
import pathlib
import re
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPY = ROOT / "target/mutations/sources"
BUILT = ROOT / "target/mutations/cargo"
RECORD = ROOT / "records/mutations.tsv"
#: The unit tests of the crate `jitlisten`.
UNIT = "jitlisten::"
#: A host that hangs without its safeguard has failed: seconds for the tests of one mutation.
PATIENCE = 240
ENVIRONMENT = dict(os.environ, CI="", JITLISTEN_LIBRARY=str(BUILT / "debug/libjitlisten.so"))


def copy_sources():
    """Everything that git knows, as it is here; what has not changed keeps its time, or cargo would build it once
    more."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in listed.decode().split("\0")[:-1]:
        source, place = ROOT / name, COPY / name
        if source.is_file() and (not place.exists() or place.read_bytes() != source.read_bytes()):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(source.read_bytes())


def build():
    words = ["cargo", "build", "--quiet", "-p", "jitlisten-capi", "--target-dir", BUILT]
    return subprocess.run(words, cwd=COPY, stderr=subprocess.PIPE, text=True)


def test_programs():
    """The two by name."""
    said = subprocess.run(
        ["cargo", "test", "--workspace", "--test", "together", "--test", "alone", "--no-run"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    ).stderr
    return {name: ROOT / path for name, path in re.findall(r"tests/(\w+)/main\.rs \((.*)\)", said)}


def failed_tests(programs, names):
    """Which of the tests with these names fail; all of them where they run too long. And whether any ran."""
    by_kind = {"unit": [], "together": [], "alone": []}
    for name in names:
        is_alone = (ROOT / "tests/tests/alone" / f"{name.split('::')[0]}.rs").exists()
        by_kind["unit" if name.startswith(UNIT) else "alone" if is_alone else "together"].append(name)
    failed, ran = [], []
    for kind, its in by_kind.items():
        if not its:
            continue
        if kind == "unit":
            words = ["cargo", "test", "-p", "jitlisten", "--lib", "--target-dir", BUILT, "--"]
            found, has_run = failed_in([*words, *(name.removeprefix(UNIT) for name in its)], COPY, its)
            found = [UNIT + name for name in found]
        else:
            # As `ci/test.sh` runs them.
            threads = 1 if kind == "alone" else 2
            found, has_run = failed_in([programs[kind], f"--test-threads={threads}", *its], ROOT / "tests", its)
        failed += found
        ran.append(has_run)
    return failed, all(ran)


def failed_in(words, directory, names):
    process = subprocess.Popen(
        words,
        cwd=directory,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return names, True
    ran = [line.split()[1:] for line in said.splitlines() if line.startswith("test ") and " ... " in line]
    return [words[0] for words in ran if words[-1] == "FAILED"], bool(ran) and "SKIPPED" not in said


def mutated(text, mutation):
    for old, new in [(mutation["old"], mutation["new"]), *mutation.get("also", [])]:
        if text.count(old) != 1:
            return None
        text = text.replace(old, new)
    return text


def outcome(programs, mutation):
    """A word for the record: `fails` is what must be."""
    place = COPY / mutation["file"]
    text = place.read_text() if place.exists() else ""
    changed = mutated(text, mutation)
    if changed is None:
        return "the edit does not fit the file"
    try:
        place.write_text(changed)
        built = build()
        if built.returncode:
            return "does not compile: " + next(
                (line for line in built.stderr.splitlines() if line.startswith("error")), "?"
            )
        failed, ran = failed_tests(programs, mutation["tests"])
    finally:
        place.write_text(text)
    if not ran:
        return "no test ran"
    missing = [name for name in mutation["tests"] if not any(name in found for found in failed)]
    return "passes: " + ", ".join(missing) if missing else "fails"


def main():
    with open(ROOT / "tests/mutations.toml", "rb") as file:
        mutations = tomllib.load(file)["mutation"]
    words = sys.argv[1:]
    mutations = [one for one in mutations if not words or any(word in str(one) for word in words)]
    copy_sources()
    built = build()
    if built.returncode:
        raise SystemExit(built.stderr)
    programs = test_programs()
    failed, ran = failed_tests(programs, sorted({name for one in mutations for name in one["tests"]}))
    if failed or not ran:
        raise SystemExit(f"mutations: with every safeguard, these tests fail, or none ran: {failed}")
    rows, today = [], datetime.date.today()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    for mutation in mutations:
        began, said = time.monotonic(), outcome(programs, mutation)
        rows.append(
            f"{mutation['safeguard']}\t{mutation['file']}\t{', '.join(mutation['tests'])}\t{said}\t{commit}\t{today}\n"
        )
        print(f"mutations: {mutation['safeguard']}: {said}, {time.monotonic() - began:.0f} s", flush=True)
        head = "safeguard\tfile\ttests\twithout the safeguard\tcommit\tdate\n"
        kept = RECORD.read_text().splitlines(keepends=True)[1:] if RECORD.exists() else []
        done = {tuple(row.split("\t")[:2]) for row in rows}
        RECORD.write_text(
            head + "".join(sorted([*(row for row in kept if tuple(row.split("\t")[:2]) not in done), *rows]))
        )
    bad = [row for row in rows if row.split("\t")[3] != "fails"]
    print(f"mutations: {len(rows) - len(bad)} of {len(rows)} tests fail without their safeguard")
    sys.exit(1 if bad else 0)


main()
