//! Tests that run one at a time on an otherwise idle machine, because they assert how much of a program's time was
//! sampled.

mod sampler_numba;
mod sampler_odd;
mod sampler_programs;
mod sampler_python;
