#!/usr/bin/env bash
# Applies lineinfo.patch to a copy of an installed Numba 0.68.1, and runs its test there together with Numba's own tests of
# debug information.
#
#   integrations/numba/test.sh PYTHON      takes about a minute
set -euo pipefail
python=$(realpath -s "${1:?a Python that has Numba 0.68.1}")
cd "$(dirname "$0")"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
installed=$("$python" -c 'import os, numba; assert numba.__version__ == "0.68.1", numba.__version__; print(os.path.dirname(numba.__file__))')
cp -r "$installed" "$scratch/numba"
patch -d "$scratch" -p1 --fuzz=0 -s <lineinfo.patch
cd "$scratch"
PYTHONPATH=$scratch "$python" -m numba.runtests numba.tests.test_lineinfo numba.tests.test_debuginfo
