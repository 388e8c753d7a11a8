#!/usr/bin/env bash
# Runs the pure parts under miri: parsers of foreign bytes, and encoders. Tests are left out if they take hours there
# (every byte changed, a name of a megabyte) or depend on the machine.
set -euo pipefail
cd "$(dirname "$0")/.."

# Tree borrows, because iced-x86's decoder tables violate stacked borrows. Test data is read from files.
export MIRIFLAGS='-Zmiri-disable-isolation -Zmiri-tree-borrows'
miri() { cargo +nightly miri test -q "$@"; }

miri -p jitlisten --test model_objects
miri -p jitlisten --test model_hostile -- --skip every_byte_changed --skip cut_off_anywhere --skip one_long_name
miri -p jitlisten --lib -- sink::jitdump::record sink::own_lines options:: log::
miri -p jitlisten-unwinder --lib
miri -p unwind-register --lib -- cfi:: frame_pointer::
