# shellcheck shell=bash
# Functions and versions that the scripts share. Sourcing this file changes to the root of the repository.
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
script=$(basename "$0" .sh)

# Newest Numba with the versions that it is tested with.
# shellcheck disable=SC2034 # the scripts that source this file use it
newest=(numba==0.68.1 llvmlite==0.50.0 numpy==2.4.6)

say() { printf '%s: %s\n' "$script" "$*" >&2; }
fail() { say "$*"; exit 1; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

# has TOOL [REMARK]: true if the tool is installed. Otherwise a failure in CI, a message elsewhere.
has() {
    command -v "$1" >/dev/null && return
    [ -z "${CI:-}" ] || fail "CI must have $1${2:+ ($2)}"
    echo "SKIPPED $script: $1 is not installed${2:+ ($2)}" >&2
    return 1
}

# retry COMMAND...: tries up to three times, because mirrors and package indices fail occasionally.
retry() {
    local attempt
    for attempt in 1 2 3; do
        "$@" && return
        say "attempt $attempt of 3 failed: $*"
        sleep $((attempt * 5))
    done
    return 1
}

# Prints the path of a Python of this version that can create virtual environments, from PATH or pyenv. Each candidate
# is tried, because pyenv's shims may refuse to run.
find_python() {
    local version=$1 candidate
    for candidate in "python$version" python3 "/usr/bin/python$version" \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version".*/bin/"python$version"; do
        if "$candidate" -c "import sys, venv, ensurepip; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" \
            >/dev/null 2>&1; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}
