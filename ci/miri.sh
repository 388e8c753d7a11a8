#!/usr/bin/env bash
# Runs the pure parts under Miri: encoders, and parsers of untrusted bytes. Excludes tests that depend on the machine or
# take hours under Miri, such as those that change every byte of an input or use a name of one megabyte.
set -euo pipefail
# shellcheck source=ci/common.sh
. "$(dirname "$0")/common.sh"

# Use tree borrows, because iced-x86's decoder tables violate stacked borrows. Isolation is off, because test data is in
# files.
export MIRIFLAGS='-Zmiri-disable-isolation -Zmiri-tree-borrows'
miri() { cargo +nightly miri test -q "$@"; }

miri -p jitlisten --test model_objects
miri -p jitlisten --test model_hostile -- --skip every_byte_changed --skip cut_off_anywhere --skip one_long_name
miri -p jitlisten --lib -- sink::jitdump::record sink::own_lines options:: log::
miri -p jitlisten-unwinder --lib
miri -p unwind-register --lib -- cfi:: frame_pointer::
