#!/bin/sh
# Creates seeds in fuzz/corpus: objects, linkage names, line tables and unwind tables from jitlisten/testdata and
# names/testdata, calls from seeds/calls.txt, and recordings from seeds/report and report/testdata.
set -eu
cd "$(dirname "$0")"
mkdir -p corpus/loaded_object corpus/image corpus/name corpus/lines corpus/unwind corpus/calls corpus/sampled_stack corpus/python_frames
cp ../jitlisten/testdata/*.o corpus/loaded_object/
cp ../jitlisten/testdata/*.o corpus/image/
grep -v '^#' ../names/testdata/names.tsv | cut -f 2 | while IFS= read -r name; do
    printf %s "$name" >"corpus/name/$(printf %s "$name" | cksum | tr ' ' -)"
done

# section OBJECT NAME: prints the bytes of one section, or nothing. objcopy supports only objects of this machine.
section() {
    readelf -SW "$1" | sed -n "s/^ *\[ *[0-9]*\] $2 *[A-Z0-9_]* *[0-9a-f]* \([0-9a-f]*\) \([0-9a-f]*\) .*/\1 \2/p" |
        while read -r offset size; do tail -c "+$((0x$offset + 1))" "$1" | head -c "$((0x$size))"; done
}
for object in ../jitlisten/testdata/*.o; do
    name=$(basename "$object" .o)
    section "$object" '\.eh_frame' >"corpus/unwind/$name"
    # The first byte of a seed selects the object that surrounds the line table; values from 128 keep the relocations.
    for choice in 200 201 202 203; do
        { printf '%b' "\\0$choice" && section "$object" '\.debug_line'; } >"corpus/lines/$name-$choice"
    done
done
find corpus/unwind -empty -delete
# Each seed consists of the section's size in two bytes, the section, and a stack.
for section in corpus/unwind/*; do
    size=$(wc -c <"$section")
    { printf '%b' "\\0$(printf %o $((size % 256)))\\0$(printf %o $((size / 256 % 128)))" && cat "$section" &&
        head -c 512 "$section"; } >"corpus/sampled_stack/$(basename "$section")"
done

grep -v '^#' seeds/calls.txt | while read -r name bytes; do
    [ -z "$name" ] || for byte in $bytes; do printf '%b' "\\0$(printf %o "0x$byte")"; done >"corpus/calls/$name"
done

cp seeds/python_frames/* corpus/python_frames/

# The first byte selects the fuzzed file: recording, image, source or perf map. With 4, the recording is merged with
# another.
mkdir -p corpus/report
sides=../report/testdata/sides
{ printf '\0' && cat "$sides/perf.data"; } >corpus/report/recording
# Also a truncated recording: it has the header and some of the records.
{ printf '\0' && head -c 12000 "$sides/perf.data"; } >corpus/report/recording-cut
for image in "$sides"/root/tmp/fixture/images/*/object-22.so; do { printf '\001' && cat "$image"; } >corpus/report/image; done
{ printf '\002' && cat "$sides/root/tmp/fixture/sides.py"; } >corpus/report/source
printf '\003%s\n' '7f0000001000 61 py::f:/tmp/a.py' '7f0000002000 10 g(int64) [v2]' >corpus/report/map
for recording in seeds/report/*; do
    { printf '\0' && cat "$recording"; } >"corpus/report/$(basename "$recording")"
    { printf '\004' && cat "$recording"; } >"corpus/report/added-$(basename "$recording")"
done
