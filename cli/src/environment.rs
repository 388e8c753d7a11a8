//! Environment variables that several commands read.

use std::env;
use std::ffi::OsString;

/// Variable that `jitlisten coverage` sets for its command, and that child processes inherit.
pub(crate) const COVERAGE: &str = "JITLISTEN_COVERAGE";

/// Variable that `python -m jitlisten` sets to the path of its interpreter.
pub(crate) const PYTHON: &str = "JITLISTEN_PYTHON";

pub(crate) fn is_set(variable: &str) -> bool {
    env::var_os(variable).is_some_and(|value| !value.is_empty())
}

pub(crate) fn prepend_path(mut first: OsString, variable: &str) -> OsString {
    if let Some(old_list) = env::var_os(variable).filter(|old_list| !old_list.is_empty() && *old_list != first) {
        first.push(":");
        first.push(old_list);
    }
    first
}
