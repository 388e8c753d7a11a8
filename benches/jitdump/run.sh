#!/usr/bin/env bash
# Compares our jitdump with LLVM's. Needs clang++ and the headers of LLVM 22 (llvm-22-dev, clang-22).
#
#   benches/jitdump/run.sh [COUNT, default 2000]
#   JITLISTEN=image benches/jitdump/run.sh    compares our images instead
set -euo pipefail
cd "$(dirname "$0")"

count=${1:-2000}
target=${CARGO_TARGET_DIR:-../../target}/jitdump-bench
config=${LLVM_CONFIG:-llvm-config-22}
mkdir -p "$target"
cargo build -q --release --manifest-path ours/Cargo.toml --target-dir "$target"
read -r -a flags <<< "$($config --cxxflags)"
read -r -a libraries <<< "$($config --ldflags --libs | tr "\n" " ")"
"${CXX:-clang++-22}" -O2 -fno-rtti "${flags[@]}" bench.cpp orc.cpp "$target/release/libjitdump_bench.a" "${libraries[@]}" \
    -Wl,-rpath,"$($config --libdir)" -o "$target/bench"

# Prefer memory to a disk, if that file system allows executable mappings.
parent=/dev/shm
findmnt -no OPTIONS --target "$parent" 2> /dev/null | grep -qw noexec && parent=${TMPDIR:-/tmp}
directory=$(mktemp -d "$parent/jitdump-bench-XXXXXX")
trap 'rm -rf "$directory"' EXIT
# ORC prints a line for every object, even in a release build.
"$target/bench" "$directory" "$count" objects/with_dwarf.o objects/without_dwarf.o \
    2> >(grep -v "^Writing unwind record" >&2)
