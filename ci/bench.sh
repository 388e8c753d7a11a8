#!/usr/bin/env bash
# What the library costs, as a Markdown table of ratios. Asserts nothing: machines are noisy, and a table can be read.
#
#   ci/bench.sh [rounds, default 15: some eight minutes]
set -euo pipefail
cd "$(dirname "$0")/.."

ci/setup.sh bench
CARGO_TARGET_DIR=target cargo build --release --quiet
exec target/venv/numba-0.68.1/bin/python benches/compare.py "$PWD/target/release/libjitlisten.so" "${1:-15}"
