#!/bin/sh
# Fills fuzz/corpus from jitlisten/testdata: every object, and every linkage name of the table.
set -eu
cd "$(dirname "$0")"
mkdir -p corpus/loaded_object corpus/name
cp ../jitlisten/testdata/*.o corpus/loaded_object/
grep -v '^#' ../jitlisten/testdata/names.tsv | cut -f 2 | while IFS= read -r name; do
    printf %s "$name" >"corpus/name/$(printf %s "$name" | cksum | tr ' ' -)"
done
