#!/usr/bin/env bash
# Profiles programs of libraries built on Numba, as their users do: python/tests/libraries. Requires target/wheels
# (ci/wheel.sh build) and a package index. About four minutes.
#
#   ci/libraries.sh [PYTEST-ARGUMENT...]
set -euo pipefail
# shellcheck source=ci/common.sh
. "$(dirname "$0")/common.sh"

venvs=target/venv/libraries
# shellcheck source=ci/venvs.sh
. ci/venvs.sh

wheel=$(find target/wheels -name "jitlisten-*_$(uname -m).whl" | head -n 1)
[ -n "$wheel" ] || fail "no wheel: ci/wheel.sh build"
make_venv numba-0.68.1 3.11 numba==0.68.1 stumpy==1.14.1 sparse==0.19.3 quantecon==0.11.4 datashader==0.19.1 pytest
"$venvs/numba-0.68.1/bin/pip" install -q --disable-pip-version-check --no-deps --force-reinstall "$wheel"
test_with numba-0.68.1 python/tests/libraries "$@"
