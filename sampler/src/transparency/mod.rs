//! Interposed libc functions that hide the sampler from the recorded program: signals, exits, privilege changes,
//! sanitizers.

pub(crate) mod disposition;
pub(crate) mod exit;
pub(crate) mod fatal;
pub(crate) mod next;
pub(crate) mod privileges;
pub(crate) mod sanitizer;
pub(crate) mod signals;
