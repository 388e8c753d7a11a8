//! Facts about the LLVM instances in this process, for the log, the API, and `jitlisten doctor PID`.

pub(crate) mod discovered;
pub(crate) mod facts;
pub(crate) mod unreported;
