#!/usr/bin/env bash
# Cost of exceptions through compiled frames and of the module lists, with and without images in those lists. `stock`
# runs twice, to show the noise.
#
#     benches/modules/run.sh LIBLLVMLITE LIBRARY [FUNCTIONS [THROWS [ROUNDS]]]
#
# In another userland, with its own libgcc: IN='ci/in-userland.sh trixie' benches/modules/run.sh ...
set -euo pipefail
llvmlite=$1 library=$(realpath "$2") functions=${3:-5000} throws=${4:-100000} rounds=${5:-3}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$here/../../target"
scratch=$(mktemp -d "$(realpath "$here/../../target")/modules.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
cc -O2 -c -o "$scratch/compile.o" "$here/compile.c"
c++ -O2 -Wall -Werror -o "$scratch/throws" "$here/throws.cpp" "$scratch/compile.o" -ldl

# shellcheck disable=SC2086 # IN holds several words.
throws() { ${IN:-} env "$@" "$scratch/throws" "$llvmlite" "$functions" "$throws"; }

for ((round = 0; round < rounds; round++)); do
    for sinks in stock stock,again image,unwind image,unwind,modules; do
        case $sinks in
        stock*) output=$(throws) ;;
        *) output=$(throws JITLISTEN=$sinks JITLISTEN_DIR="$scratch" LD_PRELOAD="$library") ;;
        esac
        echo "$sinks $output"
        rm -rf "$scratch"/image-*
    done
done
