#!/usr/bin/env bash
# Installs everything the tests, the demo and the benchmarks need: Debian or Ubuntu packages, and virtual environments
# with pinned wheels under target/venv. Existing parts are kept, so a second run takes a moment.
#
#   ci/setup.sh          everything
#   ci/setup.sh demo     perf and the first environment
#   ci/setup.sh bench    the first environment
#   ci/setup.sh gdb      gdb
#   ci/setup.sh lint     formatter and linter for Python
#   ci/setup.sh wheel    tools that build and test the wheel, in target/wheel/tools
#   ci/setup.sh quick    requirements of ci/quick.sh
#   ci/setup.sh suites   requirements of ci/suites.sh
#
# Packages that this system lacks are reported and skipped, as are the tests that need them. In CI, it is a failure if a
# package exists but cannot be installed in three attempts, because half of the suite might otherwise be skipped.
set -euo pipefail
# shellcheck source=ci/common.sh
. "$(dirname "$0")/common.sh"

venvs=target/venv
tools=target/tools
part=${1:-all}
lacking=()
failed=

lack() { lacking+=("$*"); say "could not: $*"; }
fault() { failed=yes; lack "$@"; }

# --- packages -------------------------------------------------------------------------------------------------------

may_install() {
    command -v apt-get >/dev/null || return 1
    [ "$(id -u)" = 0 ] && return
    # Ask for a password only if standard input is a terminal.
    command -v sudo >/dev/null && { sudo -n true 2>/dev/null || { [ -t 0 ] && sudo true; }; }
}

is_installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

apt_get() { as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o Acquire::Retries=3 "$@" >&2; }

install_packages() {
    local package missing=() available=()
    for package in "$@"; do is_installed "$package" || missing+=("$package"); done
    [ ${#missing[@]} -gt 0 ] || return 0
    local listed=yes
    if may_install; then update_lists || listed=; fi
    for package in "${missing[@]}"; do
        # Without package lists, every package would seem unavailable.
        if [ -z "$listed" ] || apt-cache show "$package" >/dev/null 2>&1; then available+=("$package"); else
            lack "install $package: this system does not have it"
        fi
    done
    [ ${#available[@]} -gt 0 ] || return 0
    if ! may_install; then
        fault "install ${available[*]}: apt-get and root (or sudo) are needed"
        return 0
    fi
    say "installing ${available[*]}"
    local attempt
    for attempt in 1 2 3; do
        apt_get install -y --no-install-recommends "${available[@]}" && return
        say "apt-get failed, attempt $attempt of 3"
        sleep $((attempt * 5))
        update_lists || true
    done
    # Install packages one by one, so that a failing one does not affect the others.
    for package in "${available[@]}"; do
        is_installed "$package" || apt_get install -y --no-install-recommends "$package" || fault "install $package"
    done
}

# Outdated package lists name packages that the archive has removed.
update_lists() {
    retry apt_get update && return
    say "apt-get update failed, going on with the old lists"
    return 1
}

perf_works() { perf --version >/dev/null 2>&1; }

# Debian's perf is one package. Ubuntu's /usr/bin/perf runs the build of the running kernel, which containers and fresh
# kernels lack. Any build works: the newest one is linked into $tools, which the scripts have in their PATH.
install_perf() {
    perf_works && return
    if grep -q '^ID=ubuntu' /etc/os-release 2>/dev/null; then
        install_packages linux-tools-generic
        perf_works && return
        local newest
        newest=$(find /usr/lib/linux-tools* -name perf \( -type f -o -type l \) 2>/dev/null | sort -V | tail -n 1)
        [ -n "$newest" ] && mkdir -p $tools && ln -sf "$newest" $tools/perf
    else
        install_packages linux-perf
    fi
    perf_works || fault "find a perf that runs"
}

# --- virtual environments -------------------------------------------------------------------------------------------

# make_venv NAME "PYTHON VERSIONS, BEST FIRST" REQUIREMENT...
make_venv() {
    local name=$1 versions=$2 version python=
    shift 2
    # Programs in an environment contain the path of their Python, so recreate an environment that was moved.
    local made
    made="$(realpath -m "$venvs/$name"): $*"
    [ "$(cat "$venvs/$name/.requirements" 2>/dev/null)" = "$made" ] && [ -x "$venvs/$name/bin/python" ] && return
    for version in $versions; do python=$(find_python "$version") && break; done
    mkdir -p "$venvs"
    if [ -z "$python" ]; then
        printf 'needs a Python of version %s with venv\n' "${versions// / or }" >"$venvs/$name.skipped"
        lack "make $name: no Python of version ${versions// / or } with venv here"
        return
    fi
    say "making $venvs/$name with $python"
    rm -rf "${venvs:?}/$name" "$venvs/$name.skipped"
    if "$python" -m venv "$venvs/$name"; then
        if retry "$venvs/$name/bin/python" -m pip install -q --disable-pip-version-check --only-binary :all: "$@" >&2; then
            printf '%s' "$made" >"$venvs/$name/.requirements"
            return
        fi
    fi
    rm -rf "${venvs:?}/$name"
    fault "make $name: see above"
}

first_venv() {
    make_venv numba-0.68.1 "3.11 3.12 3.13" "${newest[@]}" py-spy==0.4.3
}

other_venvs() {
    make_venv numba-0.60.0 "3.11 3.12 3.10" numba==0.60.0 llvmlite==0.43.0 numpy==2.0.2 memray==1.20.0
    make_venv numba-0.57.1 "3.11 3.10" numba==0.57.1 llvmlite==0.40.1 numpy==1.24.4
    make_venv numba-0.56.4 "3.10" numba==0.56.4 llvmlite==0.39.1 numpy==1.23.5 setuptools==65.5.0
    # A host program with its own LLVM (tests/tests/together/foreign_hosts.rs).
    make_venv jax "3.11 3.12 3.13" jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
    # Tools that do not need Numba.
    make_venv tools "3.11 3.12 3.10 3.13" pystack==1.7.2
    # Libraries that start threads and processes for Numba programs, and Scalene, in the Python version of the first
    # environment, with its NumPy.
    make_venv pools "3.11 3.12 3.13" tbb==2023.2.0 greenlet==3.5.6 objgraph==3.7.0 joblib==1.6.0 distributed==2026.8.0 mpi4py==4.1.2 \
        mpich==5.0.2 scalene==2.4.0 numpy==2.4.6
    # First Python release with `-X perf`.
    make_venv numba-0.68.1-python-3.12 "3.12 3.13" "${newest[@]}"
    # First Python release with `-X perf_jit`.
    make_venv numba-0.68.1-python-3.13 "3.13" "${newest[@]}"
}

# Formats and lints Python (pyproject.toml).
lint_venv() {
    make_venv lint "3.11 3.12 3.13 3.10" ruff==0.17.6
}

# zig can link against an old glibc.
wheel_venv() {
    local venvs=target/wheel
    make_venv tools "3.11 3.12 3.13 3.10" maturin==1.16.0 twine==7.0.0 ziglang==0.17.1 cargo-zigbuild==0.24.0 pytest==8.4.2 pytest-xdist==3.8.0 mypy==1.18.2
    # Environment for tests of the notebook magics and of replaced clocks and files, with the Python version of the
    # first environment.
    make_venv notebook "3.11 3.12 3.13" ipykernel==7.1.0 nbclient==0.10.2 freezegun==1.5.5 pyfakefs==6.3.2
}

# --------------------------------------------------------------------------------------------------------------------

PATH=$PWD/$tools:$PATH
case $part in
demo)
    install_packages build-essential python3-venv
    install_perf
    first_venv
    ;;
gdb)
    install_packages gdb
    ;;
lint)
    lint_venv
    ;;
quick)
    install_packages build-essential pkg-config python3-venv gdb binutils shellcheck libunwind-dev
    install_perf
    first_venv
    lint_venv
    ;;
suites)
    install_packages build-essential python3-venv gdb
    install_perf
    first_venv
    other_venvs
    make_venv suites "3.11 3.12 3.13" "${newest[@]}" pexpect==4.9.0
    ;;
bench)
    install_packages build-essential python3-venv
    first_venv
    ;;
all)
    install_packages build-essential pkg-config python3-venv gdb binutils shellcheck libunwind-dev libunwind-19 \
        valgrind patch strace chromium chromium-driver elfutils btrfs-progs bpftrace libjemalloc2 faketime heaptrack libheaptrack lldb-19 zlib1g-dev \
        libzstd-dev mmdebstrap tmux postgresql-15 libegl-dev libgl-dev libegl-mesa0 libgl1-mesa-dri libboost-stacktrace-dev libabsl-dev \
        libboost-context-dev libgoogle-perftools4 openmpi-bin golang-go \
        llvm-14 clang-14 llvm-22 clang-22 llvm-14-dev llvm-15-dev llvm-16-dev llvm-19-dev llvm-22-dev
    install_perf
    first_venv
    other_venvs
    lint_venv
    wheel_venv
    ci/lines.sh environment || fault "make the environment of ci/lines.sh"
    ;;
wheel)
    install_packages build-essential python3-venv binutils tmux
    wheel_venv
    ;;
*)
    say "no such part: $part"
    exit 2
    ;;
esac

if [ ${#lacking[@]} -gt 0 ]; then
    say "not everything is here:"
    printf '    %s\n' "${lacking[@]}" >&2
fi
if [ -n "$failed" ] && [ -n "${CI:-}" ]; then exit 1; fi
