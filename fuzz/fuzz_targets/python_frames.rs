//! Fuzz target that walks the frames of an interpreter in arbitrary memory. The walk must terminate and must read only
//! mapped memory. See `sampler/src/python/fuzzing.rs`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    jitlisten_sampler::python::fuzzing::frames(data);
});
