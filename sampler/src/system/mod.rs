//! Calls to the kernel that all parts of the sampler make: clocks and descriptors.

pub(crate) mod clock;
pub(crate) mod descriptors;
pub(crate) mod vdso;
