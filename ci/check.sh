#!/usr/bin/env bash
# Checks that run no test: format, lints, prose, documentation, shell scripts.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo fmt --all --check
# Every file that can forbid unsafe code must do so.
python3 ci/unsafe.py
# Comments and names are plain English, and comments name files that exist.
python3 ci/prose.py
# Files are created in one place.
python3 ci/files.py
# Modules must not import each other in a cycle.
python3 ci/cycles.py
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
    if [ -n "${CI:-}" ]; then
        echo "check: $message" >&2
        exit 1
    fi
    echo "SKIPPED check: $message" >&2
fi
# Also reports features newer than the MSRV in Cargo.toml (incompatible_msrv).
cargo clippy --workspace --all-targets --quiet -- -D warnings
RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --quiet

if command -v shellcheck >/dev/null; then
    shellcheck ci/*.sh capi/*.sh demo/*.sh integrations/*/*.sh .ci/run
elif [ -n "${CI:-}" ]; then
    echo "check: CI must have shellcheck" >&2
    exit 1
else
    echo "SKIPPED check: shellcheck is not installed" >&2
fi
