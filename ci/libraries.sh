#!/usr/bin/env bash
# Profiles programs of libraries built on Numba, as their users do: python/tests/libraries. Requires target/wheels
# (ci/wheel.sh build) and a package index. About four minutes.
#
#   ci/libraries.sh [PYTEST-ARGUMENT...]
set -euo pipefail
cd "$(dirname "$0")/.."

venvs=target/venv/libraries who=libraries
# shellcheck source=ci/venvs.sh
. ci/venvs.sh

wheel=$(find target/wheels -name "jitlisten-*_$(uname -m).whl" | head -n 1)
[ -n "$wheel" ] || { echo "libraries: no wheel: ci/wheel.sh build" >&2; exit 1; }
make_venv numba-0.68.1 3.11 numba==0.68.1 stumpy==1.14.1 sparse==0.19.3 quantecon==0.11.4 datashader==0.19.1 pytest
"$venvs/numba-0.68.1/bin/pip" install -q --disable-pip-version-check --no-deps --force-reinstall "$wheel"
test_with numba-0.68.1 python/tests/libraries "$@"
