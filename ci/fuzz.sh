#!/usr/bin/env bash
# Compiles every fuzz target. They need a nightly toolchain and cargo-fuzz to find anything (fuzz/README.md), but not to be
# compiled.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --quiet --manifest-path fuzz/Cargo.toml --target-dir target/fuzz
