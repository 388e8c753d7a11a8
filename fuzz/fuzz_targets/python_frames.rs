//! Walks the frames of an interpreter whose memory is anything: it ends, and reads only what is there. See
//! `sampler/src/python/fuzzing.rs`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    jitlisten_sampler::python::fuzzing::frames(data);
});
