#!/usr/bin/env bash
# Builds every fuzz target. `cargo +nightly fuzz run TARGET` in fuzz/ runs one.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"

# Without optimisation, because nothing is run here.
cargo +nightly fuzz build --dev
