//! Tests that run for minutes: only `make test-long` runs them.

mod image_callgrind;
mod sampler_soak;
mod soak_forever;
mod soak_scale;
