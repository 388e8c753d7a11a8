#!/usr/bin/env python3
"""Removes the safeguards in tests/mutations.toml one by one, and runs the tests that must then fail.

    ci/mutations.py [WORD...]        only safeguards whose name, file or tests contain one of the words; default: all

Each mutation edits a copy of the sources under target/mutations, from which `cargo build` builds the library. First,
the tests run against that build without a mutation, and must pass. Writes records/mutations.tsv. Fails if a test
passes without its safeguard, or if an edit no longer matches its file. `cargo mutants` invents edits and runs the whole
suite for each of them; it does not know which edit removes a safeguard.
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
SOURCES_COPY = ROOT / "target/mutations/sources"
BUILD_DIRECTORY = ROOT / "target/mutations/cargo"
RECORD_FILE = ROOT / "records/mutations.tsv"
# Prefix of the unit tests of the `jitlisten` crate.
UNIT_TEST_PREFIX = "jitlisten::"
# Timeout in seconds for the tests of one mutation. A host program that hangs without its safeguard counts as failed.
TEST_TIMEOUT = 240
ENVIRONMENT = dict(os.environ, CI="", JITLISTEN_LIBRARY=str(BUILD_DIRECTORY / "debug/libjitlisten.so"))


def copy_sources():
    """Copies the working tree's tracked files. Unchanged files keep their time, so that cargo does not rebuild them."""
    tracked_files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in tracked_files.decode().split("\0")[:-1]:
        source, copy = ROOT / name, SOURCES_COPY / name
        if source.is_file() and (not copy.exists() or copy.read_bytes() != source.read_bytes()):
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source.read_bytes())


def build():
    command = ["cargo", "build", "--quiet", "-p", "jitlisten-capi", "--target-dir", BUILD_DIRECTORY]
    return subprocess.run(command, cwd=SOURCES_COPY, stderr=subprocess.PIPE, text=True)


def test_programs():
    """Returns the paths of the two test binaries by name."""
    cargo_output = subprocess.run(
        ["cargo", "test", "--workspace", "--test", "together", "--test", "alone", "--no-run"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    ).stderr
    return {name: ROOT / path for name, path in re.findall(r"tests/(\w+)/main\.rs \((.*)\)", cargo_output)}


def find_failed_tests(programs, names):
    """Returns the named tests that failed (all of them after a timeout), and whether every kind of test ran."""
    by_kind = {"unit": [], "together": [], "alone": []}
    for name in names:
        is_alone = (ROOT / "tests/tests/alone" / f"{name.split('::')[0]}.rs").exists()
        by_kind["unit" if name.startswith(UNIT_TEST_PREFIX) else "alone" if is_alone else "together"].append(name)
    failed, kinds_run = [], []
    for kind, kind_tests in by_kind.items():
        if not kind_tests:
            continue
        if kind == "unit":
            command = ["cargo", "test", "-p", "jitlisten", "--lib", "--target-dir", BUILD_DIRECTORY, "--"]
            kind_failed, has_run = run_tests(
                [*command, *(name.removeprefix(UNIT_TEST_PREFIX) for name in kind_tests)], SOURCES_COPY, kind_tests
            )
            kind_failed = [UNIT_TEST_PREFIX + name for name in kind_failed]
        else:
            # Use the same number of threads as `ci/test.sh`.
            threads = 1 if kind == "alone" else 2
            kind_failed, has_run = run_tests(
                [programs[kind], f"--test-threads={threads}", *kind_tests], ROOT / "tests", kind_tests
            )
        failed += kind_failed
        kinds_run.append(has_run)
    return failed, all(kinds_run)


def run_tests(command, directory, names):
    process = subprocess.Popen(
        command,
        cwd=directory,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=TEST_TIMEOUT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return names, True
    test_lines = [line.split()[1:] for line in output.splitlines() if line.startswith("test ") and " ... " in line]
    return [parts[0] for parts in test_lines if parts[-1] == "FAILED"], bool(test_lines) and "SKIPPED" not in output


def apply_mutation(text, mutation):
    for old, new in [(mutation["old"], mutation["new"]), *mutation.get("also", [])]:
        if text.count(old) != 1:
            return None
        text = text.replace(old, new)
    return text


def test_mutation(programs, mutation):
    """Returns the result for the record; `fails` is the expected one."""
    source_file = SOURCES_COPY / mutation["file"]
    text = source_file.read_text() if source_file.exists() else ""
    mutated_text = apply_mutation(text, mutation)
    if mutated_text is None:
        return "the edit does not fit the file"
    try:
        source_file.write_text(mutated_text)
        build_result = build()
        if build_result.returncode:
            return "does not compile: " + next(
                (line for line in build_result.stderr.splitlines() if line.startswith("error")), "?"
            )
        failed, ran = find_failed_tests(programs, mutation["tests"])
    finally:
        source_file.write_text(text)
    if not ran:
        return "no test ran"
    missing = [name for name in mutation["tests"] if not any(name in failed_name for failed_name in failed)]
    return "passes: " + ", ".join(missing) if missing else "fails"


def main():
    with open(ROOT / "tests/mutations.toml", "rb") as file:
        mutations = tomllib.load(file)["mutation"]
    words = sys.argv[1:]
    mutations = [mutation for mutation in mutations if not words or any(word in str(mutation) for word in words)]
    copy_sources()
    build_result = build()
    if build_result.returncode:
        raise SystemExit(build_result.stderr)
    programs = test_programs()
    failed, ran = find_failed_tests(programs, sorted({name for mutation in mutations for name in mutation["tests"]}))
    if failed or not ran:
        raise SystemExit(f"mutations: with every safeguard, these tests fail, or none ran: {failed}")
    rows, date = [], datetime.date.today()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    for mutation in mutations:
        start, result = time.monotonic(), test_mutation(programs, mutation)
        rows.append(
            f"{mutation['safeguard']}\t{mutation['file']}\t{', '.join(mutation['tests'])}\t{result}\t{commit}\t{date}\n"
        )
        print(f"mutations: {mutation['safeguard']}: {result}, {time.monotonic() - start:.0f} s", flush=True)
        header = "safeguard\tfile\ttests\twithout the safeguard\tcommit\tdate\n"
        recorded_rows = RECORD_FILE.read_text().splitlines(keepends=True)[1:] if RECORD_FILE.exists() else []
        tested = {tuple(row.split("\t")[:2]) for row in rows}
        RECORD_FILE.write_text(
            header
            + "".join(sorted([*(row for row in recorded_rows if tuple(row.split("\t")[:2]) not in tested), *rows]))
        )
    survivors = [row for row in rows if row.split("\t")[3] != "fails"]
    print(f"mutations: {len(rows) - len(survivors)} of {len(rows)} tests fail without their safeguard")
    sys.exit(1 if survivors else 0)


main()
