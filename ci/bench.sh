#!/usr/bin/env bash
# Measures the cost of the library, as a Markdown table of ratios. Asserts nothing, because machines are noisy.
#
#   ci/bench.sh [iterations, default 15: about eight minutes]
set -euo pipefail
# shellcheck source=ci/common.sh
. "$(dirname "$0")/common.sh"

ci/setup.sh bench
CARGO_TARGET_DIR=target cargo build --release --quiet
exec target/venv/numba-0.68.1/bin/python benches/compare.py "$PWD/target/release/libjitlisten.so" "${1:-15}"
