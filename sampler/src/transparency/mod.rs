//! What a recorded program must not notice: signals, exits, changed privileges, sanitizers. The interposed functions of
//! libc.

pub(crate) mod disposition;
pub(crate) mod exit;
pub(crate) mod fatal;
pub(crate) mod next;
pub(crate) mod privileges;
pub(crate) mod sanitizer;
pub(crate) mod signals;
