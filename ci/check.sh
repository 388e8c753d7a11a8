#!/usr/bin/env bash
# What can be said without running anything: format, lints, documentation, shell scripts.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo fmt --all --check
# Wherever a file can forbid unsafe code, it does.
python3 ci/unsafe.py
# No file imports in a circle.
python3 ci/cycles.py
# Licences and versions of dependencies; what published crates have in them and what they offer.
python3 ci/crates.py
python3 ci/api.py
# Every block of commands in the documents is run, or says why not.
python3 ci/docs.py --check
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
