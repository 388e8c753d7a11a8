//! The tests that need the processors for themselves, and run one after another: they assert how much of a time was
//! sampled.

mod sampler_numba;
mod sampler_odd;
mod sampler_programs;
mod sampler_python;
