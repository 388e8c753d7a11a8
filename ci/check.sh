#!/usr/bin/env bash
# Checks that run no test: format, lints, documentation, shell scripts.
#
#   ci/check.sh         all
#   ci/check.sh quick   those without a build, in seconds: ci/hooks/pre-commit
set -euo pipefail
# shellcheck source=ci/common.sh
. "$(dirname "$0")/common.sh"

cargo fmt --all --check
ruff=target/venv/lint/bin/ruff
if has $ruff 'ci/setup.sh lint'; then
    $ruff format --check --quiet
    $ruff check --quiet
fi
if has shellcheck; then
    shellcheck -x ci/*.sh ci/hooks/* capi/*.sh demo/*.sh integrations/*/*.sh .ci/run
fi
# Every file that can forbid unsafe code must do so.
python3 ci/unsafe.py
# Comments and names are plain English, and comments name files that exist.
python3 ci/prose.py
# Files are created in one place.
python3 ci/files.py
# Modules must not import each other in a cycle.
python3 ci/cycles.py
[ "${1:-}" != quick ] || exit 0
# Check the licences and versions of dependencies, and the contents and APIs of the published crates.
python3 ci/crates.py
python3 ci/api.py
# Every command block in the documentation must be run by a test, or state why it is not.
python3 ci/docs.py --check
python3 ci/support.py --check
# Only the MSRV's own compiler proves that it is sufficient.
msrv=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
rustc_version=$(rustc --version | cut -d ' ' -f 2)
if [ "${rustc_version%.*}" != "$msrv" ]; then
    message="rustc is $rustc_version, and Cargo.toml says rust-version $msrv: build with that one (rustup override set $msrv), or change it"
    [ -z "${CI:-}" ] || fail "$message"
    echo "SKIPPED check: $message" >&2
fi
# Also reports features newer than the MSRV in Cargo.toml (incompatible_msrv).
cargo clippy --workspace --all-targets --quiet -- -D warnings
# Tests with `test = false` are not among all targets, and cargo ignores their names beside that option.
cargo clippy --package jitlisten-tests --test '*' --quiet -- -D warnings
RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --quiet
