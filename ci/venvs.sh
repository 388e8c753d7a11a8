# shellcheck shell=bash
# Virtual environments for tests of many Numba releases, below $venvs. The script that sources this file has sourced
# ci/common.sh, and sets $venvs.
: "${venvs:?}" "${script:?}"

# make_venv NAME PYTHON REQUIREMENT...
make_venv() {
    local name=$1 version=$2 python
    shift 2
    # The environment may have been created from fewer requirements.
    [ "$(cat "$venvs/$name/.complete" 2>/dev/null)" = "$*" ] && return
    python=$(find_python "$version") || { say "no Python $version, so no $name"; return 1; }
    rm -rf "${venvs:?}/$name"
    mkdir -p "$venvs"
    "$python" -m venv "$venvs/$name"
    "$venvs/$name/bin/python" -m pip install -q --disable-pip-version-check --only-binary :all: "$@" ||
        { say "not to be had: $*"; return 1; }
    printf '%s' "$*" >"$venvs/$name/.complete"
}

# test_with NAME WORD...: runs pytest with these arguments in the environment NAME.
test_with() {
    echo "$script: $1"
    PATH="$PWD/$venvs/$1/bin:$PATH" ci/pytest.sh "$venvs/$1/bin/python" -m pytest -q "${@:2}"
}
