#!/usr/bin/env bash
# The pure parts under miri: what turns foreign bytes into a model, and what encodes bytes for others. The tests left
# out take hours there (every byte changed, a name of a megabyte) or are about the machine itself.
set -euo pipefail
cd "$(dirname "$0")/.."

# Tree borrows, because iced-x86's decoder tables break the older rules; test data is read from files.
export MIRIFLAGS='-Zmiri-disable-isolation -Zmiri-tree-borrows'
miri() { cargo +nightly miri test -q "$@"; }

miri -p jitlisten --test model_objects
miri -p jitlisten --test model_hostile -- --skip every_byte_changed --skip cut_off_anywhere --skip one_long_name
miri -p jitlisten --lib -- sink::jitdump::record sink::own_lines options:: log::
miri -p jitlisten-unwinder --lib
miri -p unwind-register --lib -- cfi:: frame_pointer::
