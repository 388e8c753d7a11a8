//! Fuzz target: walks the frames of an interpreter with arbitrary memory. The walk must end, and only read existing
//! memory. See `sampler/src/python/fuzzing.rs`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    jitlisten_sampler::python::fuzzing::frames(data);
});
