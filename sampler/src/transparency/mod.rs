//! Interposed libc functions that hide the sampler from the recorded program: signals, exits, privilege changes,
//! sanitizers, the number of threads.

pub(crate) mod disposition;
pub(crate) mod exit;
pub(crate) mod fatal;
pub(crate) mod next;
pub(crate) mod privileges;
pub(crate) mod sanitizer;
pub(crate) mod signals;
pub(crate) mod thread_count;
