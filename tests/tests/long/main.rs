//! Tests that run for minutes. Only `make test-long` runs them.

mod image_callgrind;
mod image_exchanges;
mod sampler_soak;
mod soak_forever;
mod soak_scale;
