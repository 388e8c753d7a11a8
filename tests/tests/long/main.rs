//! The tests that go on for minutes: they are part of `make test-long`, and of nothing else.

mod image_callgrind;
mod sampler_soak;
mod soak_forever;
mod soak_scale;
