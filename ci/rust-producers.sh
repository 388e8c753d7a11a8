#!/usr/bin/env bash
# The producers of the crate that need an LLVM: the test of lifetimes, and the examples where
# tests/tests/together/integration_rust.rs looks for them.
#
#   ci/rust-producers.sh [major version, default 22]
set -euo pipefail
cd "$(dirname "$0")/.."

major=${1:-22}
# As in inkwell 0.11; linked with the shared library of LLVM, which every distribution has.
if [ "$major" -ge 18 ]; then feature=llvm$major-1; else feature=llvm$major-0; fi
features=$feature,inkwell/$feature-prefer-dynamic

# `ci/check.sh` does without an LLVM, and so without these files.
cargo clippy -p jitlisten --all-targets --quiet --features "$features" -- -D warnings
cargo build -p jitlisten --examples --features "$features"
cargo test -p jitlisten --test llvm_producers --features "$features"
