//! What people are told of the LLVMs in this process: by the log, by the API, and by `jitlisten doctor PID` from outside.

pub(crate) mod discovered;
pub(crate) mod facts;
pub(crate) mod unheard;
