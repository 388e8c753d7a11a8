//! The sampled threads, and the resources of each.

pub(crate) mod arming;
pub(crate) mod counter;
pub(crate) mod creation;
pub(crate) mod pace;
pub(crate) mod slot;
pub(crate) mod timer;
