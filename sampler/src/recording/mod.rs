//! Starts and stops recordings, with their options.

pub(crate) mod event_config;
pub(crate) mod event_name;
pub(crate) mod options;
pub(crate) mod process;
pub(crate) mod recorder;
