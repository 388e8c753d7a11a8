#!/usr/bin/env bash
# Builds the Rust producers that need an LLVM: the test of lifetimes, and the examples, which go where
# tests/tests/together/integration_rust.rs looks for them.
#
#   ci/rust-producers.sh [major version, default 22]
set -euo pipefail
# shellcheck source=ci/common.sh
. "$(dirname "$0")/common.sh"

major=${1:-22}
# Versions that inkwell 0.11 supports, linked against the shared LLVM, which every distribution provides.
if [ "$major" -ge 18 ]; then feature=llvm$major-1; else feature=llvm$major-0; fi
features=$feature,inkwell/$feature-prefer-dynamic

# `ci/check.sh` runs without an LLVM and therefore skips these files.
cargo clippy -p jitlisten-llvm --all-targets --quiet --features "$features" -- -D warnings
cargo build -p jitlisten-llvm --examples --features "$features"
cargo test -p jitlisten-llvm --test lifetimes --features "$features"
