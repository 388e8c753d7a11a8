#!/usr/bin/env bash
# Builds the Rust producers that need an LLVM: the test of lifetimes, and the examples, which go where
# tests/tests/together/integration_rust.rs looks for them.
#
#   ci/rust-producers.sh [major version, default 22]
set -euo pipefail
cd "$(dirname "$0")/.."

major=${1:-22}
# Versions that inkwell 0.11 supports, linked against the shared LLVM, which every distribution provides.
if [ "$major" -ge 18 ]; then feature=llvm$major-1; else feature=llvm$major-0; fi
features=$feature,inkwell/$feature-prefer-dynamic

# `ci/check.sh` runs without an LLVM, so it does not cover these files.
cargo clippy -p jitlisten --all-targets --quiet --features "$features" -- -D warnings
cargo build -p jitlisten --examples --features "$features"
cargo test -p jitlisten --test llvm_producers --features "$features"
