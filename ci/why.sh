#!/usr/bin/env bash
# Tests the rule of each kernel in benches/why/kernels.py with four releases of Numba (LLVM 14, 15, 20, 22) and three
# processors, into records/why.tsv, and measures the gain of each change, into records/why-speedups.tsv. A gain outside
# of the range that the advice states fails. Takes an hour.
#
# Requires the wheel (ci/wheel.sh build). Environments are created under target/venv-why.
set -euo pipefail
# shellcheck source=ci/common.sh
. "$(dirname "$0")/common.sh"

venvs=target/venv-why
. ci/venvs.sh
make_venv 0.57.1 3.11 numba==0.57.1 numpy==1.24.4 scipy==1.11.4
make_venv 0.61.2 3.11 numba==0.61.2 scipy
make_venv 0.63.1 3.11 numba==0.63.1 scipy
make_venv 0.68.1 3.11 "${newest[@]}" scipy
# Environment with the wheel's command and package, separate from those of the Numba releases.
python3 -m venv target/why
target/why/bin/pip install -q --disable-pip-version-check --no-index --force-reinstall target/wheels/jitlisten-*"$(uname -m)".whl

failed=0
python=$venvs/0.68.1/bin/python
benches/why/table.py target/why/bin/jitlisten --write records/why.tsv --speedups target/why-speedups.tsv \
    0.57.1=$venvs/0.57.1/bin/python 0.61.2=$venvs/0.61.2/bin/python 0.63.1=$venvs/0.63.1/bin/python \
    "0.68.1 nehalem"=$python,nehalem "0.68.1 skylake-avx512"=$python,skylake-avx512 0.68.1=$python || failed=1
mv target/why-speedups.tsv records/why-speedups.tsv
exit "$failed"
