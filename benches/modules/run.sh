#!/usr/bin/env bash
# Exceptions through compiled frames, and the lists of modules, with and without images in them.
#
#     benches/modules/run.sh LIBLLVMLITE LIBRARY [FUNCTIONS [THROWS [ROUNDS]]]
set -euo pipefail
llvmlite=$1 library=$2 functions=${3:-5000} throws=${4:-100000} rounds=${5:-3}
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cc -O2 -c -o "$scratch/compile.o" "$here/compile.c"
c++ -O2 -Wall -Werror -o "$scratch/throws" "$here/throws.cpp" "$scratch/compile.o" -ldl
for ((round = 0; round < rounds; round++)); do
    echo "stock $("$scratch/throws" "$llvmlite" "$functions" "$throws")"
    for sinks in image,unwind image,unwind,modules; do
        said=$(JITLISTEN=$sinks JITLISTEN_DIR=$scratch LD_PRELOAD=$library "$scratch/throws" "$llvmlite" "$functions" "$throws")
        echo "$sinks $said"
        rm -rf "$scratch"/image-*
    done
done
