#!/usr/bin/env bash
# What can be said without running anything: format, lints, documentation, shell scripts.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo fmt --all --check
# Wherever a file can forbid unsafe code, it does.
python3 ci/unsafe.py
# Files are made in one place.
python3 ci/files.py
# No file imports in a circle.
python3 ci/cycles.py
# Licences and versions of dependencies; what published crates have in them and what they offer.
python3 ci/crates.py
python3 ci/api.py
# Every block of commands in the documents is run, or says why not.
python3 ci/docs.py --check
python3 ci/support.py --check
# Whether the compiler is that of the MSRV: only then is it known that the MSRV is enough.
least=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
found=$(rustc --version | cut -d ' ' -f 2)
if [ "${found%.*}" != "$least" ]; then
    said="rustc is $found, and Cargo.toml says rust-version $least: build with that one (rustup override set $least), or change it"
    if [ -n "${CI:-}" ]; then
        echo "check: $said" >&2
        exit 1
    fi
    echo "SKIPPED check: $said" >&2
fi
# Also what is newer than the MSRV of Cargo.toml (incompatible_msrv).
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
