//! Tests that run one after another, without other load on the machine: they assert how much of a program's time was
//! sampled.

mod sampler_numba;
mod sampler_odd;
mod sampler_programs;
mod sampler_python;
