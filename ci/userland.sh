#!/usr/bin/env bash
# Creates a userland of another Debian release under target/userlands: a directory with its packages, for chroot. It is
# kept until the list of packages changes.
#
#   ci/userland.sh trixie|sid|bullseye    prints the directory, and nothing else, on standard output
# Requires root (or sudo without a password) and mmdebstrap. Without them, exits with status 3, on which callers skip
# the userland, or fail in CI.
set -euo pipefail
# shellcheck source=ci/common.sh
. "$(dirname "$0")/common.sh"

suite=${1:?the name of a Debian release}
packages=(python3 python3-venv gdb gcc g++ libc6-dev libunwind-dev binutils pkg-config make procps util-linux)
# The newest Numba that the release's Python supports; each environment is NAME=PYTHON=REQUIREMENTS.
requirements="${newest[*]} py-spy==0.4.3"
case $suite in
trixie)
    packages+=(linux-perf libllvm19 libpython3.13-testsuite)
    environments=("venv=3.13=$requirements")
    ;;
sid)
    packages+=(linux-perf libllvm21 llvm-21 python3.15 python3.15-venv)
    tests='coverage==7.17.3 pytest==9.2.0 pytest-cov==7.1.0 pytest-xdist==3.8.0'
    environments=("venv=3.14=$requirements $tests"
        "venv-3.15=3.15=numba==0.68.1 llvmlite==0.50.0 numpy==2.5.5 py-spy==0.4.3 $tests")
    ;;
bullseye)
    packages+=(linux-perf-5.10 libllvm13)
    environments=("venv=3.9=numba==0.60.0 llvmlite==0.43.0 numpy==2.0.2 py-spy==0.4.3")
    ;;
*)
    echo "userland: no such release here: $suite" >&2
    exit 2
    ;;
esac

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }

directory=target/userlands/$suite

# --- packages -------------------------------------------------------------------------------------------------------

# Prints this machine's own package mirror, if it carries Debian's archive.
mirror() {
    local found
    # shellcheck disable=SC2016 # apt expands this format
    found=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null | grep -E '/debian/?$' | head -n 1)
    echo "${found:-http://deb.debian.org/debian}"
}

make_userland() {
    # The signatures of unsupported releases have expired. Documentation is not needed.
    local attempt options=(--variant=minbase --components=main "--include=$(IFS=,; echo "${packages[*]}")"
        '--aptopt=Acquire::Check-Valid-Until "false"' '--aptopt=Acquire::Retries "5"'
        '--dpkgopt=path-exclude=/usr/share/doc/*' '--dpkgopt=path-exclude=/usr/share/man/*'
        '--dpkgopt=path-exclude=/usr/share/locale/*')
    mkdir -p target/userlands
    for attempt in 1 2 3; do
        say "making $directory, attempt $attempt of 3: one or two minutes"
        as_root rm -rf "$directory" "$directory.new" "$directory.stamp"
        if as_root env TMPDIR=/tmp mmdebstrap "${options[@]}" "$suite" "$directory.new" "$(mirror)" >"$directory.log" 2>&1; then
            as_root mv "$directory.new" "$directory"
            # The perf wrapper of this release looks for a perf that matches the running kernel.
            [ -e "$directory/usr/bin/perf" ] || as_root ln -s perf_5.10 "$directory/usr/bin/perf"
            printf '%s' "$stamp" >"$directory.stamp"
            return
        fi
        tail -n 5 "$directory.log" >&2
        sleep $((attempt * 5))
    done
    say "cannot make $suite; the whole log is $directory.log"
    return 1
}

stamp="$suite ${packages[*]}"
if [ "$(cat "$directory.stamp" 2>/dev/null)" != "$stamp" ] || [ ! -x "$directory/usr/bin/gdb" ]; then
    command -v mmdebstrap >/dev/null || { say "mmdebstrap is not installed; run ci/setup.sh"; exit 3; }
    as_root true 2>/dev/null || { say "root is needed, or sudo without a password"; exit 3; }
    make_userland
fi

# --- virtual environments -------------------------------------------------------------------------------------------

# Run pip outside the userland, which then needs no network configuration.
fetch_wheels() {
    local version=$1 wheels=$2 attempt pip
    shift 2
    pip=target/venv/numba-0.68.1/bin/python
    [ -x "$pip" ] || pip=python3
    for attempt in 1 2 3; do
        "$pip" -m pip download -q --disable-pip-version-check --only-binary :all: --python-version "$version" -d "$wheels" \
            "$@" >&2 && return
        say "pip failed, attempt $attempt of 3"
        sleep $((attempt * 2))
    done
    return 1
}

for environment in "${environments[@]}"; do
    IFS='=' read -r name version requirements <<<"$environment"
    venv=$directory/opt/$name/numba-0.68.1
    [ "$(cat "$venv/.requirements" 2>/dev/null)" = "$requirements" ] && continue
    say "making $venv"
    read -r -a words <<<"$requirements"
    wheels=$(mktemp -d)
    trap 'rm -rf "$wheels"' EXIT
    fetch_wheels "$version" "$wheels" "${words[@]}"
    as_root rm -rf "$directory/opt/$name" "$directory/opt/wheels"
    as_root mkdir -p "$directory/opt/$name"
    as_root cp -r "$wheels" "$directory/opt/wheels"
    as_root chroot "$directory" "python$version" -m venv "/opt/$name/numba-0.68.1"
    as_root chroot "$directory" "/opt/$name/numba-0.68.1/bin/python" -m pip install -q --disable-pip-version-check \
        --no-index --find-links /opt/wheels "${words[@]}" >&2
    for other in numba-0.60.0 numba-0.57.1 numba-0.56.4 numba-0.68.1-python-3.12 numba-0.68.1-python-3.13; do
        echo "only the newest Numba is in a userland" | as_root tee "$directory/opt/$name/$other.skipped" >/dev/null
    done
    as_root rm -rf "$directory/opt/wheels"
    printf '%s' "$requirements" | as_root tee "$venv/.requirements" >/dev/null
done
realpath "$directory"
