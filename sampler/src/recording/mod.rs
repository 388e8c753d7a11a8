//! Starts and stops recordings, and parses their options.

pub(crate) mod counters;
pub(crate) mod current;
pub(crate) mod environment;
pub(crate) mod event_name;
pub(crate) mod family;
pub(crate) mod launcher;
pub(crate) mod options;
pub(crate) mod pause;
pub(crate) mod process;
pub(crate) mod process_name;
pub(crate) mod recorder;
